// Moving the view, picking events, and the controls around the drawing.
const tip = document.getElementById("tip");
const live = document.getElementById("live");

function setView(start, end) {
  const span = Math.min(whole.end, Math.max(end - start, shortest / 20));
  const from = Math.min(Math.max(start, 0), whole.end - span);
  view.start = from;
  view.end = from + span;
  redraw();
}

function zoom(factor, around = (view.start + view.end) / 2) {
  setView(around - (around - view.start) / factor, around + (view.end - around) / factor);
}

function pan(share) {
  const by = share * (view.end - view.start);
  setView(view.start + by, view.end + by);
}

function eventAt(panel, x, y) {
  const place = panel.place;
  if (!place || x < place.left) return null;
  const time = view.start + (x - place.left) / place.scale;
  const slack = 2 / place.scale;
  for (const track of panel.tracks) {
    if (y < track.y - 1 || y > track.y + track.height + 1) continue;
    const index = firstAfter(track.events, time - slack);
    const event = track.events[index];
    if (event && event.start <= time + slack) return event;
  }
  return null;
}

// The row of computations under the pointer where none runs, while the step does.
function idleAt(panel, x, y) {
  const time = view.start + (x - panel.place.left) / panel.place.scale;
  if (x < panel.place.left || time < 0 || time > panel.timeline.makespan) return null;
  const track = panel.tracks.find((t) => !t.link && y >= t.y && y <= t.y + t.height);
  return track ? describeIdle(track, time, panel.timeline) : null;
}

function showTip({ title, facts }, color, x, y) {
  const swatch = document.createElement("i");
  swatch.style.background = color;
  const head = document.createElement("strong");
  head.append(swatch, title);
  const list = document.createElement("dl");
  for (const [name, value] of facts) {
    const term = document.createElement("dt"), text = document.createElement("dd");
    term.textContent = name;
    text.textContent = value;
    list.append(term, text);
  }
  tip.replaceChildren(head, list);
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const left = x + 16 + width > window.innerWidth ? x - width - 16 : x + 16;
  const top = y + 18 + height > window.innerHeight ? y - height - 14 : y + 18;
  tip.style.transform = `translate(${Math.max(6, left)}px, ${Math.max(6, top)}px)`;
}

// Mark an event for the keyboard or a click: its microbatch stays bright, the rest fades.
function pick(panel, event) {
  state.picked = { panel, id: event.id };
  const margin = 0.04 * (view.end - view.start);
  if (event.start < view.start || event.end > view.end) {
    const span = Math.max(view.end - view.start, event.duration + 2 * margin);
    const start = event.start < view.start ? event.start - margin : event.end + margin - span;
    setView(start, start + span);
  }
  const { title, facts } = describe(event, panel.timeline);
  live.textContent = `${title}; ${facts.map((fact) => fact.join(" ")).join(", ")}`;
  redraw();
}

function pickWithTip(panel, event) {
  pick(panel, event);
  const box = panel.canvas.getBoundingClientRect();
  const place = geometry(panel.canvas.clientWidth);
  const x = Math.max(place.x(event.start), place.left);
  showTip(describe(event, panel.timeline), paintOf(event).fill,
    box.left + x, box.top + event.track.y + event.track.height);
}

function letGo() {
  state.picked = state.hovered = null;
  tip.hidden = true;
  live.textContent = "";
  redraw();
}

// The event beside the picked one: in its track, or at its time in the next track.
function neighbour(panel, event, key) {
  const track = event.track;
  const along = { ArrowLeft: -1, ArrowRight: 1 }[key];
  if (along) return track.events[track.events.indexOf(event) + along];
  const others = panel.tracks.filter((t) => t.events.length && Boolean(t.link) === Boolean(track.link));
  const other = others[others.indexOf(track) + (key === "ArrowUp" ? -1 : 1)];
  if (!other) return undefined;
  const middle = event.start + event.duration / 2;
  return other.events[Math.min(firstAfter(other.events, middle), other.events.length - 1)];
}

function firstVisible(panel) {
  for (const track of panel.tracks) {
    const event = track.events[firstAfter(track.events, view.start)];
    if (event && event.start < view.end) return event;
  }
  return undefined;
}

function onKey(panel, key) {
  if (key.ctrlKey || key.metaKey || key.altKey) return;
  const picked = state.picked?.panel === panel ? panel.events[state.picked.id] : null;
  const actions = {
    "+": () => zoom(1.5), "=": () => zoom(1.5), "-": () => zoom(1 / 1.5), "_": () => zoom(1 / 1.5),
    "0": () => setView(whole.start, whole.end), Home: () => pan(-1e9), End: () => pan(1e9),
    ArrowLeft: () => pan(-0.15), ArrowRight: () => pan(0.15),
    a: toggleArrows, c: toggleColumns, Escape: letGo,
    Enter: () => { const event = picked ?? firstVisible(panel); if (event) pickWithTip(panel, event); },
  };
  let action = actions[key.key];
  if (key.shiftKey && key.key.startsWith("Arrow")) {
    action = () => {
      const event = picked ? neighbour(panel, picked, key.key) : firstVisible(panel);
      if (event) pickWithTip(panel, event);
    };
  }
  if (!action) return;
  key.preventDefault();
  action();
}

function onWheel(panel, wheel) {
  wheel.preventDefault();
  const box = panel.canvas.getBoundingClientRect();
  const unit = wheel.deltaMode === 1 ? 30 : 1;
  if (wheel.shiftKey || Math.abs(wheel.deltaX) > Math.abs(wheel.deltaY)) {
    pan(((wheel.deltaX || wheel.deltaY) * unit) / box.width);
    return;
  }
  const time = view.start + (wheel.clientX - box.left - panel.place.left) / panel.place.scale;
  zoom(Math.exp(-wheel.deltaY * unit * (wheel.ctrlKey ? 0.012 : 0.0022)), time);
}

function listen(panel) {
  const { canvas } = panel;
  const fingers = new Map();
  let moved = false;
  const at = (pointer) => {
    const box = canvas.getBoundingClientRect();
    return [pointer.clientX - box.left, pointer.clientY - box.top];
  };
  const hover = (pointer) => {
    const [x, y] = at(pointer);
    const event = eventAt(panel, x, y);
    state.hovered = event ? { panel, id: event.id } : null;
    state.crosshair = x >= panel.place.left
      ? view.start + (x - panel.place.left) / panel.place.scale : null;
    const idle = event ? null : idleAt(panel, x, y);
    const shown = event ? describe(event, panel.timeline) : idle;
    const color = event ? paintOf(event).fill : colors.hatch;
    if (shown) showTip(shown, color, pointer.clientX, pointer.clientY); else tip.hidden = true;
    redraw();
  };
  canvas.addEventListener("pointerdown", (pointer) => {
    canvas.setPointerCapture(pointer.pointerId);
    fingers.set(pointer.pointerId, at(pointer));
    moved = false;
  });
  canvas.addEventListener("pointermove", (pointer) => {
    const last = fingers.get(pointer.pointerId);
    if (!last) return hover(pointer);
    const now = at(pointer);
    const others = [...fingers].filter(([id]) => id !== pointer.pointerId);
    if (others.length === 1) {
      const other = others[0][1][0];
      const apart = Math.max(12, Math.abs(now[0] - other)) / Math.max(12, Math.abs(last[0] - other));
      const middle = (now[0] + other) / 2;
      zoom(apart, view.start + (middle - panel.place.left) / panel.place.scale);
    } else if (Math.abs(now[0] - last[0]) > 0) {
      const by = (last[0] - now[0]) / panel.place.scale;
      setView(view.start + by, view.end + by);
    }
    if (Math.abs(now[0] - last[0]) > 1) { moved = true; tip.hidden = true; state.hovered = null; }
    fingers.set(pointer.pointerId, now);
    return undefined;
  });
  canvas.addEventListener("pointerup", (pointer) => {
    fingers.delete(pointer.pointerId);
    if (moved) return;
    const event = eventAt(panel, ...at(pointer));
    const same = state.picked?.panel === panel && state.picked.id === event?.id;
    if (event && !same) pick(panel, event); else letGo();
    if (event) hover(pointer);
  });
  canvas.addEventListener("pointercancel", (pointer) => fingers.delete(pointer.pointerId));
  canvas.addEventListener("pointerleave", (pointer) => {
    if (pointer.pointerType === "touch") return; // a finger leaves after every tap
    state.hovered = state.crosshair = null;
    tip.hidden = true;
    redraw();
  });
  canvas.addEventListener("wheel", (wheel) => onWheel(panel, wheel), { passive: false });
  canvas.addEventListener("keydown", (key) => onKey(panel, key));
  canvas.addEventListener("blur", () => { tip.hidden = true; });
}

function toggleArrows() {
  state.arrows = !state.arrows;
  document.getElementById("arrows").setAttribute("aria-pressed", state.arrows);
  redraw();
}

function toggleColumns() {
  const on = document.getElementById("panels").classList.toggle("columns");
  document.getElementById("columns").setAttribute("aria-pressed", on);
  redraw();
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.setAttribute("aria-pressed", theme === "dark");
  button.querySelector(".word").textContent = theme === "dark" ? "Light" : "Dark";
  button.setAttribute("aria-label", `Switch to ${theme === "dark" ? "light" : "dark"} colours`);
  readColors();
  buildLegend();
  redraw();
}

function buildLegend() {
  const entry = (swatches, words) => {
    const item = document.createElement("li");
    const box = document.createElement("span");
    box.className = "swatches";
    box.append(...swatches);
    item.append(box, words);
    return item;
  };
  const swatch = (color, text, name = "") => {
    const box = document.createElement("i");
    box.className = name;
    if (color) { box.style.background = color.fill; box.style.color = color.text; }
    box.textContent = text;
    return box;
  };
  const palette = data.palette[colors.theme];
  const items = data.legend.computes.map((kind) => entry(
    palette[kind].map((color, repeat) => swatch(color, palette[kind].length > 1 ? repeat + 1 : "")),
    data.names[kind]));
  items.push(...data.legend.transfers.map((kind) =>
    entry([swatch(palette[kind][0], "", "thin")], data.names[kind])));
  if (data.legend.computes.length) items.push(entry([swatch(null, "", "idle")], "idle"));
  document.getElementById("legend").replaceChildren(...items);
}

function start() {
  const holder = document.getElementById("panels");
  for (const panel of panels) {
    const box = document.createElement("div");
    box.className = "panel";
    const head = document.createElement("h2");
    const small = document.createElement("small");
    small.textContent = `${panel.timeline.caption} · ${timeText(panel.timeline.makespan)}`;
    head.append(panel.timeline.name, small);
    panel.canvas = document.createElement("canvas");
    panel.canvas.tabIndex = 0;
    panel.canvas.setAttribute("role", "application");
    panel.canvas.setAttribute("aria-roledescription", "timeline");
    panel.canvas.setAttribute("aria-label",
      `Timeline of ${panel.timeline.name}, ${panel.timeline.caption}`);
    panel.canvas.setAttribute("aria-describedby", "help");
    box.append(head, panel.canvas);
    holder.append(box);
    listen(panel);
  }
  document.getElementById("columns").hidden = panels.length < 2;
  document.getElementById("arrows").hidden = !panels.some((panel) =>
    panel.tracks.some((track) => !track.link && track.events.some((event) => event.flows)));
  const click = (id, action) => document.getElementById(id).addEventListener("click", action);
  click("in", () => zoom(1.5));
  click("out", () => zoom(1 / 1.5));
  click("fit", () => setView(whole.start, whole.end));
  click("arrows", toggleArrows);
  click("columns", toggleColumns);
  click("theme", () => setTheme(colors.theme === "dark" ? "light" : "dark"));
  let dragging = null;
  overview.addEventListener("pointerdown", (pointer) => {
    overview.setPointerCapture(pointer.pointerId);
    const time = (pointer.offsetX / overview.clientWidth) * whole.end;
    const inside = time >= view.start && time <= view.end;
    const half = (view.end - view.start) / 2;
    dragging = inside ? time - view.start : half;
    setView(time - dragging, time - dragging + 2 * half);
  });
  overview.addEventListener("pointermove", (pointer) => {
    if (dragging === null) return;
    const time = (pointer.offsetX / overview.clientWidth) * whole.end;
    setView(time - dragging, time - dragging + view.end - view.start);
  });
  for (const name of ["pointerup", "pointercancel"]) {
    overview.addEventListener(name, () => { dragging = null; });
  }
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", () => setTheme(dark.matches ? "dark" : "light"));
  window.addEventListener("resize", redraw);
  new ResizeObserver(redraw).observe(holder);
  setTheme(dark.matches ? "dark" : "light");
}

start();
