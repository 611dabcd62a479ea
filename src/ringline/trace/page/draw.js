// Painting: one canvas a panel, and the overview above them.
const view = { start: 0, end: longest * 1.015 };
const whole = { ...view };
const state = { hovered: null, picked: null, crosshair: null, arrows: false };
let colors = {};

function readColors() {
  const style = getComputedStyle(document.documentElement);
  backdrop = null;
  colors = { theme: document.documentElement.dataset.theme };
  for (const name of ["card", "ink", "soft", "faint", "line", "grid", "idle", "hatch", "focus"]) {
    colors[name] = style.getPropertyValue(`--${name}`).trim();
  }
}

function paintOf(event) {
  const shades = data.palette[colors.theme][event.kind];
  return shades[Math.min(event.repeat, shades.length - 1)];
}

// Sizes a canvas for the screen's pixels and clears it.
function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    canvas.style.height = `${height}px`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return [context, width];
}

function hatching(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = colors.idle;
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = colors.hatch;
  pen.lineWidth = 1.2;
  pen.beginPath();
  for (const x of [-4, 4, 12]) { pen.moveTo(x - 6, 10); pen.lineTo(x + 6, -2); }
  pen.stroke();
  return context.createPattern(tile, "repeat");
}

function geometry(width) {
  const left = width < 560 ? 26 : 66;
  const right = width < 560 ? 6 : 12;
  const scale = (width - left - right) / (view.end - view.start);
  return { left, width, right, scale, x: (time) => left + (time - view.start) * scale };
}

function drawPanel(panel) {
  const [context, width] = prepare(panel.canvas, panel.height);
  const place = geometry(width);
  panel.place = place;
  drawAxis(context, panel, place);
  drawLabels(context, panel, place);
  context.save();
  context.beginPath();
  context.rect(place.left, 0, width - place.left, panel.height);
  context.clip();
  drawRows(context, panel, place);
  const followed = state.picked?.panel.events[state.picked.id].number;
  for (const track of panel.tracks) {
    drawTrack(context, track, place, followed, panel.timeline.instructions);
  }
  drawEnd(context, panel, place);
  if (state.arrows) drawArrows(context, panel, place);
  for (const mark of [state.picked, state.hovered]) {
    if (mark?.panel === panel) drawMark(context, panel.events[mark.id], place);
  }
  if (state.crosshair !== null) drawCrosshair(context, panel, place);
  context.restore();
}

function drawAxis(context, panel, place) {
  const step = axisStep(view.end - view.start, Math.max(2, (place.width - place.left) / 110));
  const last = place.width - place.right;
  context.textBaseline = "alphabetic";
  context.textAlign = "center";
  const spot = (text, x, font) => {
    context.font = font;
    const half = context.measureText(text).width / 2;
    return { text, half, x: Math.min(Math.max(place.left + half, x), last + place.right - half) };
  };
  const end = spot(timeText(panel.timeline.makespan), place.x(panel.timeline.makespan),
    "650 12px system-ui, sans-serif");
  const shown = panel.timeline.makespan <= view.end && panel.timeline.makespan >= view.start;
  if (shown) {
    context.fillStyle = colors.ink;
    context.fillText(end.text, end.x, 13);
  }
  for (let k = Math.ceil(view.start / step - 1e-9); k * step <= view.end; k++) {
    const x = place.x(k * step);
    context.fillStyle = colors.grid;
    context.fillRect(Math.round(x), AXIS - 8, 1, panel.height - AXIS);
    const tick = spot(axisText(k * step, step, longest), x, "11.5px system-ui, sans-serif");
    if (shown && Math.abs(tick.x - end.x) < tick.half + end.half + 8) continue;
    if (x > last) continue;
    context.fillStyle = colors.soft;
    context.fillText(tick.text, tick.x, 13);
  }
}

function drawLabels(context, panel, place) {
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.font = "500 12.5px system-ui, sans-serif";
  for (const row of panel.rows) {
    const middle = row.y + (row.bare ? row.height : ROW) / 2;
    context.fillStyle = colors.soft;
    const number = panel.timeline.instructions ? "" : `${row.device}`;
    const text = place.left < 40 ? number : rowName(panel.timeline, row);
    context.fillText(text, place.left < 40 ? 6 : 2, middle);
  }
}

function drawRows(context, panel, place) {
  const end = Math.min(place.x(panel.timeline.makespan), place.width);
  const start = Math.max(place.x(0), place.left);
  const pattern = hatching(context);
  for (const row of panel.rows) {
    context.fillStyle = row.bare ? colors.idle : pattern;
    const height = row.bare ? row.height : ROW;
    context.beginPath();
    context.roundRect(start, row.y, Math.max(0, end - start), height, 4);
    context.fill();
  }
}

// Cells, then their texts: changing the font or colour costs more than a rectangle.
function drawTrack(context, track, place, followed, instructions) {
  const { events, y, height } = track;
  const texts = [];
  let painted = -Infinity, last = null;
  for (let i = firstAfter(events, view.start); i < events.length; i++) {
    const event = events[i];
    if (event.start > view.end) break;
    const x = place.x(event.start);
    const wide = event.duration * place.scale;
    if (x + wide < painted + 0.5) continue;
    painted = x + wide;
    const color = paintOf(event);
    const dim = followed !== undefined && event.number !== followed;
    context.globalAlpha = dim ? 0.22 : 1;
    if (color !== last) context.fillStyle = color.fill;
    last = color;
    const gap = Math.min(1.2, wide * 0.15);
    if (wide < 10) {
      context.fillRect(x, y, Math.max(wide - gap, 0.6), height);
    } else {
      context.beginPath();
      context.roundRect(x, y, wide - gap, height, track.link && height < 10 ? 2 : 3.5);
      context.fill();
    }
    if (event.repeat > 0 && !track.link && wide >= 10) {
      context.strokeStyle = color.edge;
      context.lineWidth = 1;
      context.beginPath();
      context.roundRect(x + 0.5, y + 0.5, wide - gap - 1, height - 1, 3);
      context.stroke();
    }
    if (height > 12 && wide >= 8) texts.push([event, x, wide - gap, color, dim]);
  }
  const forms = instructions ? ["name"] : ["number", "narrow", "label"];
  for (const form of forms) drawTexts(context, track, place, texts, form);
  context.globalAlpha = 1;
}

// The microbatch or stripe in the middle of what is visible of a cell, its text form at the left
// if it fits. A number that does not fit is drawn narrower. An instruction has its name alone, as
// much of it as fits.
const FONTS = { number: "600 12.5px", narrow: "600 9px", label: "10.5px", name: "10.5px" };

function drawTexts(context, track, place, texts, form) {
  const small = form === "label" || form === "name";
  const middle = track.y + track.height / 2 + 0.5;
  context.textBaseline = "middle";
  context.textAlign = small ? "left" : "center";
  context.font = `${FONTS[form]} system-ui, sans-serif`;
  for (const [event, x, wide, color, dim] of texts) {
    const from = Math.max(x, place.left), room = Math.min(x + wide, place.width) - from;
    if (small && track.link) continue;
    const number = `${event.number}`, fits = room >= 7.2 * number.length + 1.5;
    if (form === "number" ? !fits : form === "narrow" && (fits || room < 5.2 * number.length + 1)) continue;
    if (form === "label" && room < 88) continue;
    const text = form === "name" ? shortened(context, event.label, room - 12)
      : small ? event.label : number;
    context.globalAlpha = (dim ? 0.3 : 1) * (small ? 0.78 : 1);
    context.fillStyle = color.text;
    context.fillText(text, small ? from + 6 : from + room / 2, middle);
  }
}

function shortened(context, text, room) {
  const wide = context.measureText(text).width;
  if (wide <= room) return text;
  const letters = Math.floor((text.length * room) / wide) - 1;
  return letters < 4 ? "" : `${text.slice(0, letters)}…`;
}

function drawEnd(context, panel, place) {
  const x = Math.round(place.x(panel.timeline.makespan)) + 0.5;
  context.strokeStyle = colors.ink;
  context.lineWidth = 1;
  context.setLineDash([3, 3]);
  context.beginPath();
  context.moveTo(x, AXIS - 6);
  context.lineTo(x, panel.height - GAP + 4);
  context.stroke();
  context.setLineDash([]);
}

function drawMark(context, event, place) {
  for (const flow of event.flows ?? []) drawFlow(context, flow, place, 1.6);
  const { y, height } = event.track ?? {};
  if (y === undefined) return;
  const x = place.x(event.start);
  const wide = Math.max(event.duration * place.scale, 3);
  context.lineWidth = 3.5;
  context.strokeStyle = colors.card;
  context.beginPath();
  context.roundRect(x - 1.5, y - 1.5, wide + 2, height + 3, 5);
  context.stroke();
  context.lineWidth = 2;
  context.strokeStyle = colors.focus;
  context.stroke();
}

// From the end of the computation that makes a value to the start of the one that reads it.
function drawFlow(context, flow, place, thickness) {
  const { made, sent, read } = flow;
  if (!made?.track || !read?.track) return;
  const down = read.track.y > made.track.y;
  const x0 = place.x(sent.start), x1 = place.x(sent.end);
  const y0 = made.track.y + (down ? made.track.height : 0);
  const y1 = read.track.y + (down ? 0 : read.track.height);
  context.strokeStyle = colors.focus;
  context.lineWidth = thickness;
  context.beginPath();
  context.moveTo(x0, y0);
  context.bezierCurveTo(x0, (y0 + y1) / 2, x1, (y0 + y1) / 2, x1, y1);
  context.stroke();
  const tip = down ? -5 : 5;
  context.fillStyle = colors.focus;
  context.beginPath();
  context.moveTo(x1, y1);
  context.lineTo(x1 - 3.5, y1 + tip);
  context.lineTo(x1 + 3.5, y1 + tip);
  context.fill();
}

function drawArrows(context, panel, place) {
  context.globalAlpha = 0.5;
  for (const track of panel.tracks) {
    if (track.link) continue;
    for (let i = firstAfter(track.events, view.start); i < track.events.length; i++) {
      const event = track.events[i];
      if (event.start > view.end) break;
      if (event.duration * place.scale < 3) continue;
      for (const flow of event.flows ?? []) {
        if (flow.read === event) drawFlow(context, flow, place, 1);
      }
    }
  }
  context.globalAlpha = 1;
}

function drawCrosshair(context, panel, place) {
  const x = Math.round(place.x(state.crosshair)) + 0.5;
  context.strokeStyle = colors.faint;
  context.lineWidth = 1;
  context.beginPath();
  context.moveTo(x, AXIS - 8);
  context.lineTo(x, panel.height);
  context.stroke();
}

const overview = document.getElementById("overview");
const OVERVIEW = 40;

let backdrop = null;

function paintBackdrop(width) {
  backdrop = document.createElement("canvas");
  const ratio = window.devicePixelRatio || 1;
  backdrop.width = Math.round(width * ratio);
  backdrop.height = Math.round(OVERVIEW * ratio);
  const context = backdrop.getContext("2d");
  context.scale(ratio, ratio);
  const scale = width / whole.end;
  const rows = panels.reduce((sum, panel) => sum + panel.rows.length + 1, -1);
  const pitch = (OVERVIEW - 8) / rows;
  let y = 4;
  context.fillStyle = colors.idle;
  context.roundRect(0, 0, width, OVERVIEW, 6);
  context.fill();
  for (const panel of panels) {
    for (const row of panel.rows) {
      const events = row.bare
        ? panel.events.filter((e) => e.device === row.device && e.peer >= 0) : row.computes;
      for (const event of events) {
        context.fillStyle = paintOf(event).fill;
        context.fillRect(event.start * scale, y, Math.max(event.duration * scale, 0.4),
          Math.max(pitch - 0.6, 0.8));
      }
      y += pitch;
    }
    y += pitch;
  }
}

function drawOverview() {
  const [context, width] = prepare(overview, OVERVIEW);
  if (backdrop?.width !== overview.width) paintBackdrop(width);
  context.drawImage(backdrop, 0, 0, width, OVERVIEW);
  const x0 = (view.start / whole.end) * width, x1 = (view.end / whole.end) * width;
  context.fillStyle = colors.card;
  context.globalAlpha = 0.66;
  context.fillRect(0, 0, x0, OVERVIEW);
  context.fillRect(x1, 0, width - x1, OVERVIEW);
  context.globalAlpha = 1;
  context.strokeStyle = colors.faint;
  context.lineWidth = 1.5;
  context.beginPath();
  context.roundRect(x0 + 1, 1, Math.max(4, x1 - x0 - 2), OVERVIEW - 2, 5);
  context.stroke();
}

let scheduled = false;
function redraw() {
  if (scheduled) return;
  scheduled = true;
  requestAnimationFrame(() => {
    scheduled = false;
    panels.forEach(drawPanel);
    drawOverview();
    document.getElementById("range").textContent =
      `${timeText(Math.max(0, view.start))} – ${timeText(Math.min(longest, view.end))}`;
  });
}
