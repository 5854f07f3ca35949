"""What is read off a gate that decides: the early warning and the objectives. They report and move nothing."""
