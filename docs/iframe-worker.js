// The site's search runs in a worker, and browsers start none on a page that was opened as a file.
// There a hidden frame runs the same script. With a server this file does nothing. Its name is what
// the theme's offline plugin looks for: without it the plugin would fetch such a script.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    #early = []; // what was said before the script was there

    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = "";
      frame.onload = () => this.#start(frame.contentWindow, new URL(url, document.baseURI).href);
      document.body.append(frame);
    }

    #start(inside, url) {
      const load = (source) =>
        new Promise((loaded, failed) => {
          const script = inside.document.createElement("script");
          script.onload = loaded;
          script.onerror = () => failed(new Error(`cannot read ${source}`));
          script.src = source;
          inside.document.body.append(script);
        });
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      // One after another, as in a worker, but awaited.
      inside.importScripts = async (...sources) => {
        for (const source of sources) await load(source);
      };
      load(url).then(() => {
        this.postMessage = (data) => inside.dispatchEvent(new MessageEvent("message", { data }));
        this.#early.forEach((data) => this.postMessage(data));
      });
    }

    postMessage(data) {
      this.#early.push(data);
    }
  };
  window.Worker = window.IFrameWorker;
}
