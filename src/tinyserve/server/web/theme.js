// Light, dark, or as the system has it. Runs before the first paint, so that nothing flashes; the only script that
// is not a module. `app.js` changes the choice.
"use strict";
try {
  const chosen = localStorage.getItem("tinyserve.theme");
  if (chosen === '"light"' || chosen === '"dark"') document.documentElement.dataset.theme = JSON.parse(chosen);
} catch {
  // Storage is switched off: the system's choice stands.
}
