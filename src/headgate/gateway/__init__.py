"""The process that serves: builds every room and takes it down again."""
