// Light, dark, or what the system says; remembered in this browser.

const ORDER = ["auto", "light", "dark"];
const KEY = "millgate-theme";

function remembered() {
  try {
    return localStorage.getItem(KEY) ?? "auto";
  } catch {
    return "auto"; // storage may be forbidden; the toggle then lasts as long as the page
  }
}

/** Make the button choose the theme. */
export function startTheme(button) {
  let theme = ORDER.includes(remembered()) ? remembered() : "auto";
  const apply = () => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  button.addEventListener("click", () => {
    theme = ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length];
    apply();
    try {
      localStorage.setItem(KEY, theme);
    } catch {
      // as above
    }
  });
  apply();
}
