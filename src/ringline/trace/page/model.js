// The data of the page: events as objects, arranged in rows and lanes of one panel a timeline.
const data = JSON.parse(document.getElementById("data").textContent);
const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "µs"], [1e-9, "ns"]];
const SIZES = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];

function timeText(seconds) {
  const [scale, unit] = TIMES.find(([s]) => Math.abs(seconds) >= s * 0.99995) ?? [1, "s"];
  return `${Number((seconds / scale).toPrecision(4))} ${unit}`;
}

// Labels of one axis share a unit and as many digits as their step needs.
function axisText(seconds, step, longest) {
  const [scale, unit] = TIMES.find(([s]) => longest >= s * 0.99995) ?? [1, "s"];
  const digits = Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9));
  return `${(seconds / scale).toFixed(Math.min(digits, 12))} ${unit}`;
}

function sizeText(bytes) {
  const [scale, unit] = SIZES.find(([s]) => bytes >= s) ?? [1, "B"];
  return `${Number((bytes / scale).toPrecision(4))} ${unit}`;
}

function axisStep(span, most) {
  const power = 10 ** Math.floor(Math.log10(span / most));
  return [1, 2, 5, 10].map((k) => k * power).find((k) => k >= (span / most) * (1 - 1e-9));
}

const ROW = 30, LINK = 6, GAP = 9, AXIS = 26, BARE_LINK = 18, BARE_LINK_OF_MANY = 13;

function buildPanel(timeline) {
  const columns = timeline.events;
  const names = Object.keys(columns);
  const events = columns.start.map((_, i) => {
    const event = { id: i };
    for (const name of names) event[name] = columns[name][i];
    event.end = event.start + event.duration;
    event.kind = timeline.kinds[event.kind];
    event.reason = timeline.reasons[event.reason];
    event.number = timeline.instructions ? i : timeline.stripes ? event.index : event.part;
    return event;
  });
  for (const [made, sent, read] of timeline.flows) {
    const flow = { made: events[made], sent: events[sent], read: events[read] };
    for (const event of [flow.made, flow.sent, flow.read]) {
      if (event) (event.flows ??= []).push(flow);
    }
  }
  const panel = { timeline, events, rows: [], tracks: [] };
  let y = AXIS;
  for (let device = 0; device < timeline.devices; device++) {
    const computes = events.filter((e) => e.device === device && e.peer < 0
      && (e.duration > 0 || !timeline.stripes));
    const bare = computes.length === 0;
    const row = { device, y, computes, bare };
    if (!bare) {
      panel.tracks.push({ device, y, height: ROW, events: computes });
      y += ROW + 1;
    }
    const many = timeline.lanes[device].length > 2;
    const height = !bare ? LINK : many ? BARE_LINK_OF_MANY : BARE_LINK;
    for (const lane of timeline.lanes[device]) {
      panel.tracks.push({ device, y, height, events: lane.map((i) => events[i]), link: true });
      y += height + 1;
    }
    row.height = Math.max(y - row.y, ROW / 2);
    y = row.y + row.height + GAP;
    panel.rows.push(row);
  }
  for (const track of panel.tracks) for (const event of track.events) event.track = track;
  panel.height = y;
  return panel;
}

// First event of a track that ends after `time`; tracks are in order of time.
function firstAfter(events, time) {
  let low = 0, high = events.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (events[middle].end > time) high = middle; else low = middle + 1;
  }
  return low;
}

function reasonText(reason) {
  return reason.replace(/^(activation|cotangent)\[(\d+),(\d+)\]/,
    "the $1 of microbatch $3 for chunk $2,");
}

function describe(event, timeline) {
  const what = timeline.instructions ? ""
    : timeline.stripes ? `, piece ${event.part} of stripe ${event.index}`
    : `, microbatch ${event.part}`;
  const title = `${data.names[event.kind] ?? event.kind}${what}`;
  const facts = [];
  if (timeline.instructions) {
    // Which device does not matter: all run the same.
  } else if (event.peer < 0 && timeline.stripes) {
    facts.push(["device", `${event.device}`]);
  } else if (event.peer < 0) {
    const repeat = timeline.repeats > 1
      ? ` (repeat ${event.repeat + 1} of ${timeline.repeats})` : "";
    facts.push(["stage", `${event.device}`], ["chunk", `${event.index}${repeat}`]);
  } else if (event.peer === event.device) {
    facts.push(["among", `the chips of stage ${event.device}`], ["of", `chunk ${event.index}`]);
  } else {
    facts.push(["link", `${event.device} → ${event.peer}, channel ${event.channel}`]);
    if (!timeline.stripes) facts.push(["for", `chunk ${event.index}`]);
  }
  facts.push(["start", timeText(event.start)], ["duration", timeText(event.duration)]);
  if (event.bytes) facts.push(["size", sizeText(event.bytes)]);
  if (event.wait > 0) facts.push(["waited", `${timeText(event.wait)} for ${reasonText(event.reason)}`]);
  return { title: `${event.label} · ${title}`, facts };
}

function rowName(timeline, row) {
  if (timeline.instructions) return "device";
  return `${row.bare || timeline.stripes ? "device" : "stage"} ${row.device}`;
}

// Why a stage computes nothing at `time`: what the next computation of its row waits for.
function describeIdle(track, time, timeline) {
  const next = firstAfter(track.events, time);
  const before = track.events[next - 1], after = track.events[next];
  const start = before ? before.end : 0;
  const end = after ? after.start : timeline.makespan;
  const facts = [["start", timeText(start)], ["duration", timeText(end - start)]];
  if (after?.wait > 0) facts.push(["waits", `for ${reasonText(after.reason)}`]);
  if (after) facts.push(["then", after.label]);
  return { title: `${rowName(timeline, track)} is idle${after ? "" : " until the end"}`, facts };
}

const panels = data.timelines.map(buildPanel);
const longest = Math.max(...data.timelines.map((t) => t.makespan)) || 1;
const shortest = Math.min(
  longest, ...panels.flatMap((p) => p.events).map((e) => e.duration || longest));
