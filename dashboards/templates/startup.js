// All scripts are loaded: show the view that is stored in the address.
page.listeners.forEach((listener) => listener());
page.showCard();
if (page.card) page.byId("selected").scrollIntoView({ block: "nearest" });
page.showSection();
// A sandboxed frame ignores downloads and new windows silently.
page.byId("framed").hidden = window === window.parent;
