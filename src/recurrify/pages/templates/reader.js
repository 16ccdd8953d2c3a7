// A text token by token: two readings compared, one window at a time.
const reader = document.querySelector(".reader");
const data = JSON.parse(reader.querySelector(".reader-data").textContent);
const form = reader.querySelector("form"), box = reader.querySelector(".tokens"), card = reader.querySelector(".card");
const visible = { "\n": "↵", "\t": "⇥", " ": "␣", "\r": "␍" };
let current = null;

const make = (tag, text = "", className = "") =>
  Object.assign(document.createElement(tag), { textContent: text, className });
const name = (select) => select.selectedOptions[0].textContent;
const signed = (value) => (value > 0 ? "+" : value < 0 ? "−" : "") + Math.abs(value).toFixed(2);
const percent = (value) => `${(100 * value).toFixed(value < 0.1 ? 1 : 0)} %`;
const losses = (place) => [form.first, form.second].map((select) => data.readings[select.value][place]);

function colour(span, place) {
  const [mine, theirs] = losses(place);
  if (mine === null || theirs === null) return;
  let strength, kind;
  if (form.view.value === "difference") {
    if (Math.abs(mine - theirs) < 0.1) return;
    [strength, kind] = [Math.abs(mine - theirs) / 3, mine < theirs ? "better" : "worse"];
  } else {
    [strength, kind] = [(form.view.value === "first" ? mine : theirs) / 8, "loss"];
  }
  span.classList.add(kind);
  span.style.setProperty("--share", `${Math.round(8 + 44 * Math.min(Math.sqrt(strength), 1))}%`);
}

function draw() {
  const number = Number(form.window.value), [first, stop] = data.windows[number - 1];
  form.number.value = number;
  box.replaceChildren();
  for (let place = number === 1 ? 0 : first; place < stop; place++) {
    const text = data.text[place], span = make("span", text, "t");
    span.dataset.place = place;
    if (text.includes("\n")) span.classList.add("line");
    if (!text) span.classList.add("empty");
    colour(span, place);
    box.append(span);
  }
  choose(box.children[0]);
}

function bars(title, parts, className = "") {
  const section = make("div", "", className), most = Math.max(...parts.map(([, value]) => value), 1e-9);
  section.append(make("h4", title));
  for (const [label, value] of parts) {
    const row = make("div", "", "bar"), track = make("span"), bar = make("i");
    bar.style.setProperty("--part", `${(100 * value) / most}%`);
    track.append(bar);
    row.append(make("span", label), track, make("span", percent(value)));
    section.append(row);
  }
  return section;
}

function choose(span) {
  if (!span?.dataset.place) return;
  current?.classList.remove("current");
  current = span;
  span.classList.add("current");
  const place = Number(span.dataset.place), [mine, theirs] = losses(place);
  const shown = data.text[place].replace(/[\n\t\r ]/g, (one) => visible[one]) || "(rest of a character)";
  card.replaceChildren(make("b", shown));
  if (mine === null || theirs === null) {
    card.append(make("p", "The first token: nothing predicts it."));
    return;
  }
  const table = document.createElement("table"), body = table.createTBody();
  for (const [label, value] of [[name(form.first), mine.toFixed(2)], [name(form.second), theirs.toFixed(2)], ["difference", signed(mine - theirs)]]) {
    const row = body.insertRow();
    row.append(make("th", label), make("td", value, "number"));
  }
  card.append(make("h4", "loss (nats)"), table);
  const layers = data.attention[place], places = data.places[place];
  if (!layers || layers[0] === null) return;
  const mean = layers.reduce((sum, value) => sum + value, 0) / layers.length;
  card.append(make("h4", `attention to the memory: ${percent(mean)}`));
  if (places?.length > 1) {
    const label = (part) => (part === 0 ? "oldest" : part === places.length - 1 ? "newest" : "");
    card.append(bars("where in the memory", places.map((value, part) => [label(part), value])));
  }
  const top = layers.map((value, layer) => [`layer ${data.layers[layer]}`, value]).sort((a, b) => b[1] - a[1]);
  card.append(bars(top.length > 5 ? "five strongest layers" : "by layer", top.slice(0, 5), "more"));
}

form.addEventListener("input", draw);
form.addEventListener("submit", (event) => event.preventDefault());
box.addEventListener("pointerover", (event) => choose(event.target.closest(".t")));
box.addEventListener("click", (event) => {
  choose(event.target.closest(".t"));
  current?.scrollIntoView({ block: "nearest" }); // on narrow screens the card could hide it
});
box.addEventListener("keydown", (event) => {
  const step = { ArrowRight: "nextElementSibling", ArrowLeft: "previousElementSibling" }[event.key];
  if (!step || !current) return;
  event.preventDefault();
  choose(current[step] ?? current);
  current.scrollIntoView({ block: "nearest" });
});
draw();
