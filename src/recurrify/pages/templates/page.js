// Sortable tables, charts in the reader's colour scheme, and the numbers behind each chart as a table.
const dark = matchMedia("(prefers-color-scheme: dark)");

function sortBy(button) {
  const heading = button.closest("th"), table = heading.closest("table"), body = table.tBodies[0];
  const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
  heading.setAttribute("aria-sort", direction > 0 ? "ascending" : "descending");
  const column = heading.cellIndex;
  const key = (row) => {
    const cell = row.cells[column];
    return "order" in cell.dataset ? Number(cell.dataset.order) : cell.textContent.trim();
  };
  const compare = (a, b) => {
    if (typeof a === typeof b) return direction * (typeof a === "number" ? a - b : a.localeCompare(b, "en", { numeric: true }));
    return typeof a === "number" ? -1 : 1; // missing values go last
  };
  const rows = [...body.rows].map((row) => [key(row), row]);
  rows.sort(([a], [b]) => compare(a, b));
  body.append(...rows.map(([, row]) => row));
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

function shown(value) {
  if (typeof value !== "number") return String(value ?? "–");
  return Number.isInteger(value) ? value.toLocaleString("en") : Number(value.toPrecision(4)).toString();
}

function dataTable(spec) {
  const found = spec.datasets ? Object.values(spec.datasets) : [spec.data?.values ?? []];
  const records = found.reduce((longest, one) => (one.length > longest.length ? one : longest), []);
  const keys = Object.keys(records[0] ?? {});
  const heading = keys.map((key) => element("th", { scope: "col" }, element("button", { type: "button" }, key)));
  const rows = records.map((record) => element("tr", {}, ...keys.map((key) => {
    const number = typeof record[key] === "number";
    const cell = element("td", { className: number ? "number" : "" }, shown(record[key]));
    if (number) cell.dataset.order = record[key];
    return cell;
  })));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heading)), element("tbody", {}, ...rows));
  const box = element("div", { className: "scroll", tabIndex: 0 }, table);
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", "Numbers of this chart");
  return box;
}

async function draw() {
  const figures = [...document.querySelectorAll("figure.chart")];
  const configs = figures.length ? JSON.parse(document.getElementById("chart-configs").textContent) : {};
  const theme = dark.matches ? "dark" : "light";
  for (const figure of figures) {
    const spec = JSON.parse(figure.querySelector("script.spec").textContent);
    const plot = figure.querySelector(".plot");
    const options = { actions: false, renderer: "svg", config: configs[theme], tooltip: { theme } };
    await window.vegaEmbed(plot, spec, options);
    plot.querySelector("svg")?.setAttribute("focusable", "false");
  }
  document.documentElement.dataset.charts = theme;
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("thead button");
  if (button) sortBy(button);
});
for (const details of document.querySelectorAll("details.data")) {
  details.addEventListener("toggle", () => {
    const spec = JSON.parse(details.closest("figure").querySelector("script.spec").textContent);
    if (details.open && !details.querySelector("table")) details.append(dataTable(spec));
  });
}
dark.addEventListener("change", draw);
// A chart in a closed fold has no width: it is drawn again when the fold opens.
for (const details of document.querySelectorAll("details:not(.data)")) {
  details.addEventListener("toggle", () => details.open && window.dispatchEvent(new Event("resize")));
}
draw();
