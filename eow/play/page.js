// The page: strokes on the sheet, examples, bars. What is on the sheet is either strokes or the pixels of an example.

const UNIT = 320; // the sheet's side, in the strokes' own unit
const [sheet, seen, rate] = ["sheet", "seen", "rate"].map((name) => document.getElementById(name));
let strokes = [], pixels = null, what = "empty"; // pixels: the networks' input, null where there is nothing
let pointer = null, cursor = null, penDown = false; // cursor: where the keyboard's pen is

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const percent = (share) => `${(100 * share).toFixed(share < 0.0995 ? 1 : 0)}\u00a0%`;

function paintPixels(context, side) {
  const [r, g, b] = colour("--ink").match(/[0-9a-f]{2}/gi).map((two) => parseInt(two, 16));
  pixels.forEach((value, cell) => {
    context.fillStyle = `rgba(${r}, ${g}, ${b}, ${value / 255})`;
    context.fillRect((cell % page.side) * side, Math.floor(cell / page.side) * side, side, side);
  });
}

function paint() {
  const size = Math.round(sheet.clientWidth * (window.devicePixelRatio || 1)) || UNIT;
  if (sheet.width !== size) sheet.width = sheet.height = size;
  const context = sheet.getContext("2d"), small = seen.getContext("2d");
  context.setTransform(size / UNIT, 0, 0, size / UNIT, 0, 0);
  context.clearRect(0, 0, UNIT, UNIT);
  small.clearRect(0, 0, page.side, page.side);
  if (pixels) paintPixels(small, 1);
  if (pixels && !strokes.length) paintPixels(context, UNIT / page.side);
  context.strokeStyle = context.fillStyle = colour("--ink");
  context.lineWidth = 18;
  context.lineCap = context.lineJoin = "round";
  for (const stroke of strokes) {
    context.beginPath();
    context.moveTo(stroke[0].x, stroke[0].y);
    for (const point of stroke) context.lineTo(point.x, point.y);
    context.stroke();
  }
  if (!pixels && !cursor) {
    context.fillStyle = colour("--quiet");
    context.font = "17px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillText("draw here", UNIT / 2, UNIT / 2);
  }
  if (cursor) {
    context.fillStyle = colour(penDown ? "--unknown-bar" : "--known");
    context.beginPath();
    context.arc(cursor.x, cursor.y, 6, 0, 2 * Math.PI);
    context.fill();
  }
}

function makeBars(name) {
  const list = document.querySelector(`#${name} .bars`);
  for (const label of [...page.classes, "unknown"]) {
    const row = document.createElement("li"), track = document.createElement("span");
    const [text, share, fill] = ["name", "share", "fill"].map((part) => {
      const span = document.createElement("span");
      span.className = part;
      return span;
    });
    text.textContent = text.title = label;
    track.className = "track";
    track.setAttribute("aria-hidden", "true");
    track.append(fill);
    row.append(text, track, share);
    if (label.length > 2) row.className = "long";
    if (list.children.length === page.classes.length) row.className = "unknown";
    list.append(row);
  }
  if (page.networks[name].odds === null) list.lastChild.className = "unknown none";
}

function showAnswer(name, said) {
  const panel = document.getElementById(name), verdict = panel.querySelector(".verdict");
  const shares = said ? [...said.probs, said.unknown] : [];
  const best = shares.indexOf(Math.max(...shares)), open = page.networks[name].odds !== null;
  panel.querySelectorAll(".bars li").forEach((row, i) => {
    const share = shares[i] ?? 0, absent = !open && i === page.classes.length;
    row.querySelector(".fill").style.transform = `scaleX(${share})`;
    row.querySelector(".share").textContent = absent ? "none" : said ? percent(share) : "";
    row.classList.toggle("best", i === best);
  });
  const unsure = best === page.classes.length, word = document.createElement("b");
  word.textContent = unsure ? "unknown" : page.classes[best];
  verdict.classList.toggle("unsure", unsure);
  verdict.replaceChildren(...(said ? [word, percent(shares[best])] : ["nothing yet"]));
  return said ? `${panel.querySelector("h2").textContent} says ${word.textContent}, ${percent(shares[best])}.` : "";
}

function answer() {
  const share = Number(rate.value) / 100, said = pixels ? predict(pixels, share) : {};
  document.getElementById("rate-value").textContent = `${rate.value} %`;
  return Object.keys(page.networks).map((name) => showAnswer(name, said[name])).join(" ").trim();
}

// Everything again from what is on the sheet; in words for those who cannot see it when a stroke has ended.
function update(ended = true) {
  if (strokes.length) pixels = pixelsOf(strokes);
  paint();
  const words = answer();
  if (!ended) return;
  sheet.setAttribute("aria-label", `Drawing area, ${what}`);
  document.getElementById("said").textContent = words || "The sheet is empty.";
}

let waiting = false;
function updateSoon() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    update(pointer === null);
  });
}

function put(newStrokes, newPixels, words) {
  [strokes, pixels, what, pointer, cursor, penDown] = [newStrokes, newPixels, words, null, null, false];
  update();
}

function begin(point) {
  if (!strokes.length) pixels = null; // an example gives way to the hand
  strokes.push([point]);
  what = "your drawing";
}

function extend(point) {
  const stroke = strokes[strokes.length - 1], last = stroke[stroke.length - 1];
  if (Math.hypot(point.x - last.x, point.y - last.y) >= 2) stroke.push(point);
}

function place(event) {
  const box = sheet.getBoundingClientRect(), inside = (v) => Math.min(Math.max(v, 0), UNIT);
  return {
    x: inside(((event.clientX - box.left) / box.width) * UNIT),
    y: inside(((event.clientY - box.top) / box.height) * UNIT),
  };
}

sheet.addEventListener("pointerdown", (event) => {
  if (pointer !== null || event.button !== 0) return; // a second finger does not draw
  sheet.setPointerCapture(event.pointerId);
  pointer = event.pointerId;
  cursor = null;
  begin(place(event));
  updateSoon();
});
sheet.addEventListener("pointermove", (event) => {
  if (event.pointerId !== pointer) return;
  const steps = event.getCoalescedEvents?.() ?? [];
  for (const step of steps.length ? steps : [event]) extend(place(step));
  updateSoon();
});
for (const kind of ["pointerup", "pointercancel"]) {
  sheet.addEventListener(kind, (event) => {
    if (event.pointerId !== pointer) return;
    pointer = null;
    updateSoon();
  });
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
sheet.addEventListener("keydown", (event) => {
  const step = event.shiftKey ? 4 : 16;
  if (event.key in ARROWS) {
    const [x, y] = ARROWS[event.key], inside = (v) => Math.min(Math.max(v, 0), UNIT);
    cursor ??= { x: UNIT / 2, y: UNIT / 2 };
    cursor = { x: inside(cursor.x + step * x), y: inside(cursor.y + step * y) };
    if (penDown) extend(cursor);
  } else if (event.key === " ") {
    cursor ??= { x: UNIT / 2, y: UNIT / 2 };
    penDown = !penDown;
    if (penDown) begin(cursor);
  } else if (event.key === "Delete" || event.key === "Backspace") {
    put([], null, "empty");
  } else return;
  event.preventDefault();
  update(!penDown);
});
sheet.addEventListener("blur", () => {
  cursor = null;
  penDown = false;
  paint();
});

const points = (...pairs) => pairs.map(([x, y]) => ({ x, y }));
const letterA = () => [points([70, 280], [160, 40], [250, 280]), points([105, 190], [215, 190])];

// A curve of a few random waves, another one every time.
function scribble() {
  const waves = Array.from({ length: 4 }, () => Array.from({ length: 6 }, Math.random));
  const wave = (w, t, axis) => (w[axis] + 0.3) * Math.sin(2 * Math.PI * ((1 + 4 * w[axis + 2]) * t + w[axis + 4]));
  const at = (t, axis) => waves.reduce((sum, w) => sum + wave(w, t, axis), 0);
  return [Array.from({ length: 120 }, (_, i) => ({ x: 160 + 42 * at(i / 119, 0), y: 160 + 42 * at(i / 119, 1) }))];
}

let turn = 0;
const bytes = (text) => Array.from(atob(text), (letter) => letter.charCodeAt(0));
const real = (example) => put([], bytes(example.pixels), `a ${page.classes[example.label]} of the test set`);
const examples = {
  three: () => real(page.examples.find((example) => page.classes[example.label] === "3")),
  digit: () => real(page.examples[turn++ % page.examples.length]),
  letter: () => put(letterA(), null, "the letter A"),
  scribble: () => put(scribble(), null, "a scribble"),
  noise: () => put([], Array.from({ length: page.side ** 2 }, () => Math.floor(256 * Math.random())), "noise"),
};
for (const button of document.querySelectorAll("[data-example]")) {
  button.addEventListener("click", examples[button.dataset.example]);
}
document.getElementById("clear").addEventListener("click", () => put([], null, "empty"));
rate.addEventListener("input", () => answer());
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
window.addEventListener("resize", paint);

window.eow = { predict, pixelsOf, shown: () => pixels, classes: page.classes };
Object.keys(page.networks).forEach(makeBars);
update();
