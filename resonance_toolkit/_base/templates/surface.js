"use strict";
/* A surface on a canvas, to turn by hand. `data` has the axes `a` and `b`, the heights `z` (null
   where there is none) and a `name`. Letters and edges take the colour of the canvas's text. */
function describeSurface(data) {
  const flat = data.z.flat().filter(v => v !== null);
  const low = Math.min(...flat), high = Math.max(...flat), span = high - low || 1;
  const size = Math.max(Math.abs(low), Math.abs(high)) || 1;
  const digits = Math.min(15, Math.max(4, Math.ceil(Math.log10(size / span)) + 3));
  const missing = data.a.length * data.b.length - flat.length;
  const tell = v => v.toPrecision(digits);
  const text = data.a.length + " x " + data.b.length + " points, " + tell(low) + " to " +
    tell(high) + (missing ? ", " + missing + " not finite" : "");
  return { low, high, span, tell, text };
}
function showSurface(canvas, data, { wheel = true } = {}) {
  const draw = canvas.getContext("2d"), n = data.a.length, m = data.b.length;
  const { low, high, span, tell } = describeSurface(data);
  const stops = [[68,1,84],[59,82,139],[33,145,140],[94,201,98],[253,231,37]];
  let turn = -0.7, tilt = 0.9, zoom = 1;
  function colour(t) {
    const s = Math.min(3.999, Math.max(0, t * 4)), i = Math.floor(s), f = s - i;
    const part = k => Math.round(stops[i][k] + f * (stops[i+1][k] - stops[i][k]));
    return "rgb(" + [0, 1, 2].map(part) + ")";
  }
  function project(x, y, z) {
    const c = Math.cos(turn), s = Math.sin(turn), u = c * x - s * y, v = s * x + c * y;
    const e = Math.cos(tilt), f = Math.sin(tilt);
    const k = 0.3 * zoom * Math.min(canvas.width, canvas.height * 1.2);
    return [canvas.width / 2 + k * u, canvas.height / 2 - k * (z * f + v * e), v * f - z * e];
  }
  const unit = (i, size) => 2 * i / (size - 1) - 1, height = z => (z - low) / span - 0.5;
  function paint() {
    const ink = getComputedStyle(canvas).color;
    canvas.width = canvas.clientWidth * devicePixelRatio;
    canvas.height = canvas.clientHeight * devicePixelRatio;
    draw.strokeStyle = ink;
    const edge = (p, q) => { draw.beginPath(); draw.moveTo(...project(...p).slice(0, 2));
                             draw.lineTo(...project(...q).slice(0, 2)); draw.stroke(); };
    edge([-1, -1, -.5], [1, -1, -.5]);
    edge([1, -1, -.5], [1, 1, -.5]);
    edge([-1, -1, -.5], [-1, -1, .5]);
    const cells = [];
    for (let i = 0; i + 1 < n; i++) for (let j = 0; j + 1 < m; j++) {
      const corners = [[i,j],[i+1,j],[i+1,j+1],[i,j+1]];
      const z = corners.map(([p, q]) => data.z[p][q]);
      if (z.includes(null)) continue;
      const points = corners.map(([p, q], k) => project(unit(p, n), unit(q, m), height(z[k])));
      const depth = points.reduce((total, p) => total + p[2], 0);
      cells.push([depth, points, z.reduce((x, y) => x + y) / 4]);
    }
    cells.sort((p, q) => q[0] - p[0]);
    for (const [, points, z] of cells) {
      draw.fillStyle = draw.strokeStyle = colour((z - low) / span);
      draw.beginPath();
      points.forEach((p, k) => k ? draw.lineTo(p[0], p[1]) : draw.moveTo(p[0], p[1]));
      draw.closePath(); draw.fill(); draw.stroke();
    }
    draw.fillStyle = ink;
    draw.font = 13 * devicePixelRatio + "px system-ui, sans-serif";
    // A label that would cover an earlier one goes above it: a phone has little room for both.
    const taken = [], line = 15 * devicePixelRatio;
    const label = (text, x, y, z) => {
      const p = project(x, y, z), width = draw.measureText(text).width;
      const left = Math.max(0, Math.min(p[0], canvas.width - width));
      const covers = ([start, end, bottom]) =>
        left < end && start < left + width && Math.abs(bottom - p[1]) < line;
      while (taken.some(covers)) p[1] -= line / 4;
      taken.push([left, left + width, p[1]]);
      draw.fillText(text, left, p[1]);
    };
    label("alpha " + data.a[0].toPrecision(3), -1, -1.12, -.5);
    label(data.a[n-1].toPrecision(3), 1, -1.12, -.5);
    label("beta " + data.b[m-1].toPrecision(3), 1.06, 1, -.5);
    label(data.name + " " + tell(high), -1, -1, .56);
    label(tell(low), -1.02, -1, -.42);
  }
  const turnBy = (sideways, upwards) => {
    turn += sideways; tilt = Math.min(1.57, Math.max(0.05, tilt - upwards)); paint();
  };
  let held = null;
  canvas.onpointerdown = e => {
    held = [e.clientX, e.clientY]; canvas.setPointerCapture(e.pointerId);
  };
  canvas.onpointerup = canvas.onpointercancel = () => { held = null; };
  canvas.onpointermove = e => {
    if (!held) return;
    const [x, y] = held;
    held = [e.clientX, e.clientY];
    turnBy((e.clientX - x) / 150, (e.clientY - y) / 200);
  };
  const steps = { ArrowLeft: [-.1, 0], ArrowRight: [.1, 0], ArrowUp: [0, -.07], ArrowDown: [0, .07] };
  canvas.onkeydown = e => {
    if (!(e.key in steps)) return;
    e.preventDefault(); turnBy(...steps[e.key]);
  };
  if (wheel) canvas.onwheel = e => {
    e.preventDefault(); zoom *= Math.exp(-e.deltaY / 800); paint();
  };
  addEventListener("resize", paint);
  addEventListener("beforeprint", paint);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  paint();
}
