for (const button of document.querySelectorAll(".paste button")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(text);
    try {
      await navigator.clipboard.writeText(text.textContent);
      button.textContent = "Copied";
    } catch {  // not allowed here: the reader copies what is selected
      button.textContent = "Selected";
    }
  });
}
