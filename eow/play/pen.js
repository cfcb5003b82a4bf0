// From strokes to a picture like those of the data set. A stroke is a list of points {x, y} in any unit.
//
// Both preparations work on the lines themselves, so a drawing may be small, large or in a corner: they are fitted to
// the box first and get the pen's width afterwards.

function segmentsOf(strokes) {
  return strokes.flatMap((stroke) => stroke.map((point, i) => [stroke[Math.max(i - 1, 0)], point]));
}

function boxOf(strokes) {
  const xs = strokes.flat().map((p) => p.x), ys = strokes.flat().map((p) => p.y);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  return { x: (left + right) / 2, y: (top + bottom) / 2, width: right - left, height: bottom - top };
}

const moved = (strokes, move) => strokes.map((stroke) => stroke.map(move));

// For the centre of every cell of a side x side grid, the distance to the nearest line.
function distances(strokes, side) {
  const segments = segmentsOf(strokes);
  return Float64Array.from({ length: side * side }, (_, cell) => {
    const x = (cell % side) + 0.5, y = Math.floor(cell / side) + 0.5;
    let nearest = Infinity; // squared
    for (const [a, b] of segments) {
      const dx = b.x - a.x, dy = b.y - a.y, square = dx * dx + dy * dy;
      const along = square && Math.min(Math.max(((x - a.x) * dx + (y - a.y) * dy) / square, 0), 1);
      nearest = Math.min(nearest, (x - a.x - along * dx) ** 2 + (y - a.y - along * dy) ** 2);
    }
    return Math.sqrt(nearest);
  });
}

// Sheared until its lines lean neither way on the whole. Their lengths change with it, so a few rounds are needed.
function upright(strokes, rounds = 4) {
  const parts = segmentsOf(strokes).map(([a, b]) => ({
    x: (a.x + b.x) / 2, y: (a.y + b.y) / 2, dx: b.x - a.x, dy: b.y - a.y, length: Math.hypot(b.x - a.x, b.y - a.y),
  }));
  const mass = parts.reduce((sum, p) => sum + p.length, 0);
  if (!mass || !rounds) return strokes;
  const mean = (value) => parts.reduce((sum, p) => sum + p.length * value(p), 0) / mass;
  const cx = mean((p) => p.x), cy = mean((p) => p.y);
  const xy = mean((p) => (p.x - cx) * (p.y - cy) + (p.dx * p.dy) / 12);
  const yy = mean((p) => (p.y - cy) ** 2 + p.dy ** 2 / 12);
  const lean = yy ? Math.min(Math.max(xy / yy, -1), 1) : 0;
  return upright(moved(strokes, (p) => ({ x: p.x - lean * (p.y - cy), y: p.y })), rounds - 1);
}

// scikit-learn's digits: bitmaps of 32x32, as high as the box, about 20 wide, with about 310 black pixels whatever the
// digit, as if strokes had been thinned or thickened to that. What remains is the count of black in every 4x4 block.
// Upright, because they are: of 2,000 MNIST digits brought to this size, the plain network knew 66 % as they slant
// and 80 % upright.
function digitsPixels(strokes) {
  const side = 32, widest = 20, ink = 310, usual = 2, thinnest = 1.5, thickest = 4.5, squeeze = 3;
  strokes = upright(strokes);
  const box = boxOf(strokes), room = 1e-3;
  const tall = (side - 2 * usual) / Math.max(box.height, room);
  const across = Math.min(tall, (widest - 2 * usual) / Math.max(box.width, room));
  const down = Math.min(tall, squeeze * across); // a dash stays a dash
  strokes = moved(strokes, (p) => ({ x: (p.x - box.x) * across + side / 2, y: (p.y - box.y) * down + side / 2 }));
  const far = distances(strokes, side);
  const radius = Math.min(Math.max(far.slice().sort()[ink - 1], thinnest), thickest);
  const counts = new Array(64).fill(0);
  far.forEach((distance, cell) => {
    if (distance <= radius) counts[8 * Math.floor(cell / (4 * side)) + Math.floor((cell % side) / 4)]++;
  });
  return counts.map((count) => Math.round((count * 255) / 16));
}

// MNIST: the digit fills a box of 20x20, grey at its edges, and its centre of mass is the middle of 28x28.
function mnistPixels(strokes) {
  const side = 28, fill = 20, radius = 1.3;
  const box = boxOf(strokes), scale = (fill - 2 * radius) / Math.max(box.width, box.height, 1e-3);
  strokes = moved(strokes, (p) => ({ x: (p.x - box.x) * scale + side / 2, y: (p.y - box.y) * scale + side / 2 }));
  const inked = () => distances(strokes, side).map((distance) => Math.min(Math.max(radius + 0.5 - distance, 0), 1));
  let x = 0, y = 0, mass = 0;
  inked().forEach((ink, cell) => {
    x += ink * ((cell % side) + 0.5);
    y += ink * (Math.floor(cell / side) + 0.5);
    mass += ink;
  });
  strokes = moved(strokes, (p) => ({ x: p.x - x / mass + side / 2, y: p.y - y / mass + side / 2 }));
  return Array.from(inked(), (ink) => Math.round(255 * ink));
}

const pixelsOf = { digits: digitsPixels, mnist: mnistPixels }[page.data];
