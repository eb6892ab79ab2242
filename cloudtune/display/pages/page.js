"use strict";
// Draws the charts of the page, shows one trial in all of them, and keeps a live page up to date.
(() => {
  let page = JSON.parse(document.getElementById("data").textContent);
  const narrowest = 560, paperWidth = 680;
  const config = {
    displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d"],
    showSendToCloud: false, plotlyServerURL: "",  // a button of plotly's sends the chart to its maker
    modeBarButtonsToAdd: [{
      name: "svg", title: "Download as SVG", icon: Plotly.Icons.disk,
      click: place => Plotly.downloadImage(place, {
        format: "svg", filename: document.title, width: place.clientWidth, height: place.clientHeight,
      }),
    }],
  };
  const places = () => page.figures.map((_, number) => document.getElementById(`figure-${number}`));

  // The marks of a trial in all traces of a chart, with a gap where a line has one.
  function marks(traces, trial) {
    const found = {x: [], y: [], base: [], width: [], customdata: [], colors: []};
    for (const trace of traces) {
      if (trace.line && trace.line.shape === "hv") continue;  // the best so far, of several trials
      let before = found.x.length ? -1 : -2;
      (trace.customdata || []).forEach((data, at) => {
        if (!trial || !data || data[0] !== trial) return;
        if (trace.type !== "bar" && before > -2 && before !== at - 1) {
          found.x.push(null); found.y.push(null); found.customdata.push(null);
        }
        before = at;
        found.x.push(trace.x[at]); found.y.push(trace.y[at]); found.customdata.push(data);
        if (trace.type === "bar") {
          found.base.push(trace.base[at]); found.width.push(trace.width[at]);
          found.colors.push(trace.marker.color);
        }
      });
    }
    return found;
  }

  function follow(trial) {
    const select = document.getElementById("trial");
    if (!select) return;
    select.value = trial;
    document.getElementById("chosen").textContent =
      trial ? page.trials[trial] || "" : "click on a line or a bar to follow a trial";
    page.figures.forEach((figure, number) => {
      if (!figure.linked) return;
      const place = places()[number], own = figure.data.slice(0, -1), last = own.length;
      const found = marks(own, trial);
      const bars = own.some(trace => trace.type === "bar");
      const faint = own.map(trace => trial && trace.mode !== "text" ? 0.15 : trace.opacity ?? 1);
      Plotly.restyle(place, {opacity: faint}, own.map((_, at) => at));
      const change = {x: [found.x], y: [found.y], customdata: [found.customdata]};
      if (bars) Object.assign(change, {base: [found.base], width: [found.width], "marker.color": [found.colors]});
      Plotly.restyle(place, change, [last]);
    });
  }

  // On a narrow screen the legend lies below the chart, and takes no room from it.
  function fitted(figure, place) {
    const layout = {...figure.layout, uirevision: "kept"};
    if (layout.width || place.clientWidth > narrowest) return layout;
    const lines = figure.data.filter(trace => trace.name && trace.showlegend !== false).length;
    const below = 20 * lines + 20;
    return {
      ...layout, height: layout.height + below,
      margin: {...layout.margin, l: 45, r: 10, b: 60 + below},
      legend: {yref: "container", y: 0, yanchor: "bottom", x: 0, font: {size: 11}},
    };
  }

  function draw() {
    page.figures.forEach((figure, number) => {
      const place = places()[number];
      Plotly.react(place, figure.data.map(trace => ({...trace})), fitted(figure, place), config);
      if (!figure.linked || place.dataset.linked) return;
      place.dataset.linked = "yes";
      place.on("plotly_click", event => {
        const data = event.points[0].customdata;
        if (data && page.trials[data[0]] !== undefined) follow(data[0]);
      });
      place.on("plotly_doubleclick", () => follow(""));
    });
  }

  draw();
  matchMedia(`(max-width: ${narrowest}px)`).addEventListener("change", draw);
  const select = document.getElementById("trial");
  if (select) select.addEventListener("change", () => follow(select.value));

  const folded = new Set();
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach(each => { folded.add(each); each.open = true; });
    places().forEach(place => Plotly.relayout(place, {autosize: false, width: paperWidth}));
  });
  addEventListener("afterprint", () => {
    folded.forEach(each => { each.open = false; });
    folded.clear();
    places().forEach((place, number) => Plotly.relayout(
      place, {autosize: true, width: page.figures[number].layout.width || null}));
  });
  document.documentElement.dataset.drawn = String(page.figures.length);
  if (document.body.dataset.live === undefined) return;

  // ---- a live page ------------------------------------------------------------------------------

  // Puts new tables and texts in place of the old ones; what is unfolded stays so.
  function replace(old, fresh) {
    if (old.innerHTML === fresh.innerHTML) return;
    const open = [...old.querySelectorAll("details")].map(each => each.open);
    old.replaceChildren(...fresh.childNodes);
    old.querySelectorAll("details").forEach((each, number) => { each.open = Boolean(open[number]); });
  }

  function show(next) {
    const chosen = select.value, main = document.querySelector("main"), scrolled = scrollY;
    page = next;
    document.getElementById("head").innerHTML = next.head;
    const template = document.createElement("template");
    template.innerHTML = next.main;
    const titles = parts => [...parts].map(each => each.querySelector("h2").textContent).join("\n");
    if (titles(main.children) === titles(template.content.children)) {
      [...template.content.children].forEach((fresh, number) => {
        const old = main.children[number];
        for (const part of [".below", "figcaption"]) {
          if (old.querySelector(part)) replace(old.querySelector(part), fresh.querySelector(part));
        }
      });
    } else {
      main.replaceChildren(...template.content.children);
    }
    draw();
    const names = ["", ...Object.keys(next.trials)];
    select.replaceChildren(...names.map(name => new Option(name || "all", name)));
    if (chosen) follow(chosen);
    scrollTo(0, scrolled);
    document.documentElement.dataset.drawn = String(next.figures.length);
  }

  const state = document.getElementById("state"), stop = document.getElementById("stop");
  const extend = document.getElementById("extend");
  let seen = 0, failures = 0;

  function end(text) {
    state.textContent = text;
    stop.disabled = extend.disabled = true;
  }

  async function poll() {
    let wait = 2;
    try {
      const answer = await fetch(`content?seen=${seen}`, {cache: "no-store"});
      if (answer.status === 200) {
        const next = await answer.json();
        wait = next.wait;
        seen = next.number;
        show(next);
        if (next.over) return end("the run has ended; this page stays as it is");
      }
      failures = 0;
    } catch (error) {
      failures += 1;
      if (failures > 5) return end("no longer updated: the command that served this page has ended");
    }
    setTimeout(poll, 1000 * wait);
  }

  async function send(what, fields) {
    const answer = await fetch(what, {method: "POST", body: JSON.stringify(fields)});
    state.textContent = await answer.text();
    return answer.ok;
  }

  stop.addEventListener("click", () => {
    if (stop.dataset.sure) return send("stop", {});
    stop.dataset.sure = "yes";
    stop.textContent = "Stop it? Click again";
    setTimeout(() => { delete stop.dataset.sure; stop.textContent = "Stop the run"; }, 5000);
  });
  extend.addEventListener("click", () => send("extend", {
    deadline: document.getElementById("time").value, budget: document.getElementById("dollars").value,
  }));
  poll();
})();
