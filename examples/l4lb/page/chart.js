// A line chart of the last two minutes, in SVG, with its latest values in words for those who cannot see it.
"use strict";

class Chart {
  constructor(svg, name, unit, labels) {
    this.svg = svg;
    this.name = name;
    this.unit = unit;
    this.labels = labels;
    this.points = [];
    svg.setAttribute("viewBox", "0 0 300 100");
    svg.setAttribute("preserveAspectRatio", "none");
    this.lines = labels.map((_, i) => this.add("path", "l" + (i + 1)));
    this.title = this.add("title", "");
  }

  add(tag, cls) {
    const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
    if (cls) e.setAttribute("class", cls);
    this.svg.append(e);
    return e;
  }

  push(...values) {
    this.points.push(values);
    if (this.points.length > 120) this.points.shift();
    const most = Math.max(1, ...this.points.flat());
    this.lines.forEach((line, i) => {
      const d = this.points.map((p, x) => (x ? "L" : "M") + ((300 * x) / 119).toFixed(1) + " " + (98 - (94 * p[i]) / most).toFixed(1));
      line.setAttribute("d", d.join(""));
    });
    const now = this.labels.map((label, i) => (label + " " + this.unit(values[i])).trim()).join(", ");
    const text = `${this.name}: now ${now}, at most ${this.unit(most)} in the last ${this.points.length} s`;
    this.title.textContent = text;
    this.svg.setAttribute("aria-label", text);
    this.svg.parentElement.querySelector("figcaption").textContent = `${this.name}: ${now}`;
  }
}
