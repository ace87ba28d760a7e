// Copies the code next to a button, and shows that for two seconds.
(function () {
  "use strict";
  document.addEventListener("click", (event) => {
    const button = event.target.closest && event.target.closest("button.copy");
    if (!button) return;
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
