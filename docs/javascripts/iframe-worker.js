"use strict";
// (Zensical knows by the name of this file that it need not load another one from a host.)
// The search of the site runs in a worker, which browsers refuse to a page that was opened as a
// file. There a hidden frame takes its place: it has a global scope of its own, as a worker has.
class FrameWorker extends EventTarget {
  constructor(address) {
    super();
    this.onmessage = null;
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    document.body.append(this.frame);
    const scope = this.frame.contentWindow;
    this.forward = (event) => {
      if (event.source !== scope) return;
      const message = new MessageEvent("message", { data: event.data });
      this.dispatchEvent(message);
      if (this.onmessage) this.onmessage(message);
    };
    addEventListener("message", this.forward);
    const page = scope.document;
    page.open();
    page.write("<!doctype html><body></body>");
    page.close();
    scope.postMessage = (data) => send(scope, data);
    scope.importScripts = (...names) => load(page, names);
    this.started = load(page, [address]);
  }

  postMessage(data) {
    const message = { data: structuredClone(data) };
    this.started.then(() =>
      this.frame.contentWindow.dispatchEvent(new MessageEvent("message", message)),
    );
  }

  terminate() {
    removeEventListener("message", this.forward);
    this.frame.remove();
  }
}

// Of what is sent, a window says who it is from.
function send(scope, data) {
  dispatchEvent(new MessageEvent("message", { data: structuredClone(data), source: scope }));
}

// Run scripts in a page, one after the other.
async function load(page, addresses) {
  for (const address of addresses) {
    await new Promise((done, failed) => {
      const script = page.createElement("script");
      script.src = new URL(address, location.href);
      script.onload = done;
      script.onerror = () => failed(new Error(`${address} cannot be loaded`));
      page.body.append(script);
    });
  }
}

if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = FrameWorker;
}
