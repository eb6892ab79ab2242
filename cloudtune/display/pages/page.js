"use strict";
// Draws the charts of the page, and shows one trial in all of them.
(() => {
  const page = JSON.parse(document.getElementById("data").textContent);
  const places = page.figures.map((_, number) => document.getElementById(`figure-${number}`));
  const config = {
    displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d"],
    showSendToCloud: false, plotlyServerURL: "",  // a button of plotly's sends the chart to its maker
  };
  const paperWidth = 680;

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
      const place = places[number], own = figure.data.slice(0, -1), last = own.length;
      const found = marks(own, trial);
      const bars = own.some(trace => trace.type === "bar");
      const faint = own.map(trace => trial && trace.mode !== "text" ? 0.15 : trace.opacity ?? 1);
      Plotly.restyle(place, {opacity: faint}, own.map((_, at) => at));
      const change = {x: [found.x], y: [found.y], customdata: [found.customdata]};
      if (bars) Object.assign(change, {base: [found.base], width: [found.width], "marker.color": [found.colors]});
      Plotly.restyle(place, change, [last]);
    });
  }

  page.figures.forEach((figure, number) => {
    const place = places[number];
    Plotly.newPlot(place, figure.data.map(trace => ({...trace})), figure.layout, config);
    if (!figure.linked) return;
    place.on("plotly_click", event => {
      const data = event.points[0].customdata;
      if (data && page.trials[data[0]] !== undefined) follow(data[0]);
    });
    place.on("plotly_doubleclick", () => follow(""));
  });
  const select = document.getElementById("trial");
  if (select) select.addEventListener("change", () => follow(select.value));

  const folded = new Set();
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details:not([open])").forEach(each => { folded.add(each); each.open = true; });
    places.forEach(place => Plotly.relayout(place, {autosize: false, width: paperWidth}));
  });
  addEventListener("afterprint", () => {
    folded.forEach(each => { each.open = false; });
    folded.clear();
    places.forEach((place, number) => Plotly.relayout(
      place, {autosize: true, width: page.figures[number].layout.width || null}));
  });
  document.documentElement.dataset.drawn = String(places.length);
})();
