for (const button of document.querySelectorAll(".paste button")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const text = button.parentElement.querySelector("code");
    getSelection().selectAllChildren(text);  // where copying is not allowed, the reader copies it
    await navigator.clipboard.writeText(text.textContent);
    button.textContent = "Copied";
  });
}
