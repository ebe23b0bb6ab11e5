// Applies the chosen theme before anything is drawn; without a choice the system's is used.
const THEMES = ["auto", "light", "dark"];

function storedTheme() {
  try {
    const stored = localStorage.getItem("tfcluster-theme");
    return THEMES.includes(stored) ? stored : "auto";
  } catch {
    return "auto"; // storage may be forbidden
  }
}

function applyTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  if (button) button.textContent = `Theme: ${theme}`;
}

applyTheme(storedTheme());
document.addEventListener("DOMContentLoaded", () => {
  applyTheme(storedTheme());
  document.getElementById("theme").addEventListener("click", () => {
    const next =
      THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
    try {
      localStorage.setItem("tfcluster-theme", next);
    } catch {
      // The choice then holds for this page only.
    }
    applyTheme(next);
    document.dispatchEvent(new Event("themechange"));
  });
});
