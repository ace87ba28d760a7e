// Copies the code next to a button, or the page's address, and shows that for two seconds.
(function () {
  "use strict";
  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("button.copy, button.copy-link");
    if (!button) return;
    if (button.matches(".copy-link")) {
      const label = button.textContent;
      const shows = (words) => {
        button.textContent = words;
        setTimeout(() => { button.textContent = label; }, 2000);
      };
      // Without permission, the address bar still has it.
      const stays = () => shows("Copy the address above");
      if (navigator.clipboard) navigator.clipboard.writeText(location.href).then(() => shows("Copied"), stays);
      else stays();
      return;
    }
    const code = button.parentElement.querySelector("pre");
    const said = button.parentElement.querySelector("[role=status]");
    const say = (words) => {
      button.textContent = said.textContent = words;
      setTimeout(() => {
        button.textContent = "Copy";
        said.textContent = "";
      }, 2000);
    };
    const select = () => {
      // Without permission to write to the clipboard, select the text so that it can be copied with the keyboard.
      getSelection().selectAllChildren(code);
      say("Press Ctrl+C");
    };
    if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(() => say("Copied"), select);
    else select();
  });
})();
