// The two networks: normalise, multiply, keep what is positive, softmax. Weights are base64 of float32 in the page.

const page = JSON.parse(document.getElementById("eow-page").textContent);

function floats(text) {
  return new Float32Array(Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0)).buffer);
}

const networks = {};
for (const [name, network] of Object.entries(page.networks)) {
  const layers = network.layers.map(({ weight, bias, square }) => ({
    weight: floats(weight), bias: floats(bias), square: square === undefined ? null : floats(square),
  }));
  networks[name] = { layers, odds: network.odds };
}

function logitsOf(layers, x) {
  layers.forEach(({ weight, bias, square }, depth) => {
    const out = new Float64Array(bias.length);
    for (let row = 0; row < bias.length; row++) {
      let sum = bias[row];
      for (let column = 0; column < x.length; column++) sum += weight[row * x.length + column] * x[column];
      out[row] = depth < layers.length - 1 ? Math.max(sum, 0) : sum;
    }
    // The unknown logit may be quadratic in the last features.
    if (square !== null) out[out.length - 1] += square.reduce((sum, each, column) => sum + each * x[column] ** 2, 0);
    x = out;
  });
  return x;
}

function softmax(logits) {
  const largest = Math.max(...logits);
  const parts = Array.from(logits, (logit) => Math.exp(logit - largest));
  const total = parts.reduce((sum, part) => sum + part, 0);
  return parts.map((part) => part / total);
}

// What both networks say about one picture of 0..255, row by row. `rate`, where given, is the share of unknowns to
// expect: the network learned with the odds λ, so its last logit moves by log(rate / (1 - rate)) - log λ.
function predict(pixels, rate = null) {
  if (pixels.length !== page.side * page.side) throw new RangeError(`a picture here has ${page.side ** 2} pixels`);
  const x = Float64Array.from(pixels, (pixel) => (pixel / 255 - page.mean) / page.std);
  const said = {};
  for (const [name, { layers, odds }] of Object.entries(networks)) {
    const logits = logitsOf(layers, x);
    if (odds !== null && rate !== null) logits[logits.length - 1] += Math.log(rate / (1 - rate)) - Math.log(odds);
    const probs = softmax(logits);
    said[name] = { unknown: odds === null ? 0 : probs.pop(), probs };
  }
  return said;
}
