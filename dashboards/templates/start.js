// Everything is in place: show the view that the address asks for.
page.listeners.forEach((listener) => listener());
page.showCard();
if (page.card) page.byId("selected").scrollIntoView({ block: "nearest" });
// A sandboxed frame drops downloads and new windows without a word.
page.byId("framed").hidden = window === window.parent;
