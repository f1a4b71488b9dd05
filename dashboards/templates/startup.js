// All scripts are loaded: show the view that is stored in the address.
page.listeners.forEach((listener) => listener());
page.showCard();
page.showSection();
// A sandboxed frame ignores downloads and new windows silently.
page.byId("framed").hidden = window === window.parent;
