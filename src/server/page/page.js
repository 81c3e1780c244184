// A chat over /v1/chat/completions, and the server's state beside it. Text of replies is only ever set as text, never
// read as HTML.
"use strict";

const $ = (id) => document.getElementById(id);
const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed", "presence_penalty"];
const messages = []; // the conversation, as the API takes it
let running = null;  // the AbortController of the reply that is being written

function element(name, className, text) {
  const e = document.createElement(name);
  if (className) e.className = className;
  if (text !== undefined) e.textContent = text;
  return e;
}

function say(sentence, wrong) {
  $("status").textContent = sentence;
  $("status").classList.toggle("wrong", Boolean(wrong));
}

function headers() {
  const key = $("key").value;
  return key ? { Authorization: "Bearer " + key } : {};
}

// ---- showing messages ----

// Fenced code becomes a block of its own; all else is text as it is.
function showText(place, text) {
  place.replaceChildren();
  text.split(/^```/m).forEach((part, i) => {
    if (i % 2 === 0) {
      if (part.trim()) place.append(element("div", "text", part.replace(/^\n|\n$/g, "")));
      return;
    }
    const line = part.indexOf("\n");
    const code = element("pre");
    code.tabIndex = 0;
    code.append(element("code", "", line < 0 ? "" : part.slice(line + 1)));
    place.append(code);
  });
}

// On a narrow screen the page scrolls, otherwise the conversation does.
function isNarrow() {
  return getComputedStyle($("log")).overflowY === "visible";
}

function atEnd() {
  const log = $("log");
  if (isNarrow()) return $("form").getBoundingClientRect().bottom < window.innerHeight + 80;
  return log.scrollHeight - log.scrollTop - log.clientHeight < 80;
}

function scrollDown() {
  if (isNarrow()) $("status").scrollIntoView({ block: "end" });
  else $("log").scrollTop = $("log").scrollHeight;
}

function addMessage(role, title) {
  const box = element("article", "message " + role);
  box.append(element("h2", "", title));
  $("log").append(box);
  scrollDown();
  return box;
}

function showUser(text) {
  showText(addMessage("user", "You").appendChild(element("div")), text);
}

// The view of a reply that is being written.
class Reply {
  constructor() {
    this.message = { role: "assistant", content: "" };
    this.box = addMessage("assistant", "Assistant");
    this.content = element("div");
    this.box.append(this.content);
    this.calls = [];
    this.drawn = true;
  }

  think(text) {
    if (!this.thought) {
      this.thought = element("details", "thought");
      this.thoughtTitle = element("summary", "", "Thinking");
      this.thoughtText = element("div", "text");
      this.thought.append(this.thoughtTitle, this.thoughtText);
      this.box.insertBefore(this.thought, this.content);
      this.message.reasoning_content = "";
    }
    this.message.reasoning_content += text;
  }

  call(delta) {
    let call = this.calls[delta.index];
    if (!call) {
      call = { id: delta.id, type: "function", function: { name: delta.function.name, arguments: "" } };
      this.calls[delta.index] = call;
      this.message.tool_calls = this.calls;
      call.view = element("div", "call");
      call.view.append(element("strong", "", "Calls " + call.function.name));
      call.text = element("pre");
      call.view.append(call.text);
      this.box.append(call.view);
    }
    call.function.arguments += delta.function.arguments || "";
  }

  take(chunk) {
    const choice = chunk.choices[0];
    if (chunk.usage) this.usage = chunk.usage;
    if (chunk.tokenfold) this.timings = chunk.tokenfold;
    if (!choice) return;
    if (choice.delta.reasoning_content) this.think(choice.delta.reasoning_content);
    if (choice.delta.content) this.message.content += choice.delta.content;
    for (const delta of choice.delta.tool_calls || []) this.call(delta);
    if (choice.finish_reason) this.reason = choice.finish_reason;
    this.drawSoon();
  }

  // Once a frame, however many tokens came.
  drawSoon() {
    if (!this.drawn) return;
    this.drawn = false;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    const follow = atEnd();
    this.drawn = true;
    showText(this.content, this.message.content);
    if (this.thought) this.thoughtText.textContent = this.message.reasoning_content.trim();
    for (const call of this.calls) if (call) call.text.textContent = pretty(call.function.arguments);
    if (follow) scrollDown();
  }

  end(how) {
    this.draw();
    if (this.thought) this.thoughtTitle.textContent = `Thought, ${this.message.reasoning_content.length} characters`;
    const notes = [how];
    if (this.usage) {
      const cached = this.usage.prompt_tokens_details ? this.usage.prompt_tokens_details.cached_tokens : 0;
      notes.push(`${this.usage.prompt_tokens} tokens in` + (cached ? ` (${cached} resumed)` : ""));
      notes.push(`${this.usage.completion_tokens} out`);
      if (this.timings && this.timings.decode_ms > 0)
        notes.push(`${(1000 * (this.usage.completion_tokens - 1) / this.timings.decode_ms).toFixed(1)} tokens/s`);
    }
    this.box.append(element("p", "quiet notes", notes.filter(Boolean).join(" \u00b7 ")));
    if (this.reason === "tool_calls") this.askForResults();
    scrollDown();
  }

  // What a person types in as the tools' results goes on with the conversation.
  askForResults() {
    const form = element("div", "call");
    const fields = this.calls.map((call, i) => {
      const label = element("label", "", `Result of ${call.function.name} `);
      const field = element("textarea");
      field.rows = 2;
      field.id = `result-${messages.length}-${i}`;
      label.htmlFor = field.id;
      form.append(label, field);
      return field;
    });
    const button = element("button", "", fields.length > 1 ? "Send results" : "Send result");
    button.type = "button";
    button.addEventListener("click", () => {
      if (running) return;
      this.calls.forEach((call, i) => messages.push({ role: "tool", tool_call_id: call.id, content: fields[i].value }));
      fields.forEach((field) => { field.disabled = true; });
      button.remove();
      ask();
    });
    form.append(button);
    this.box.append(form);
    fields[0].focus();
  }
}

function pretty(json) {
  try {
    return JSON.stringify(JSON.parse(json), null, 2);
  } catch {
    return json; // it is still being written
  }
}

// ---- asking ----

function request() {
  const system = $("system").value.trim();
  const plain = messages.map((m) => {
    if (!m.tool_calls) return m;
    return { ...m, tool_calls: m.tool_calls.map(({ id, type, function: f }) => ({ id, type, function: f })) };
  });
  const body = { stream: true, stream_options: { include_usage: true },
                 messages: system ? [{ role: "system", content: system }, ...plain] : plain };
  for (const name of NUMBERS) if ($(name).value !== "") body[name] = Number($(name).value);
  const tools = $("tools").value.trim();
  if (tools) body.tools = JSON.parse(tools);
  if ($("thinking").value) body.chat_template_kwargs = { enable_thinking: $("thinking").value === "on" };
  return body;
}

// The events of a stream, as objects.
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    const parts = held.split("\n\n");
    held = parts.pop();
    for (const part of parts) {
      if (!part.startsWith("data: ")) continue;
      if (part === "data: [DONE]") return;
      yield JSON.parse(part.slice(6));
    }
  }
}

async function refusal(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `HTTP ${response.status}`;
  }
}

function setRunning(controller) {
  running = controller;
  $("stop").disabled = !controller;
  $("send").disabled = Boolean(controller);
  $("log").setAttribute("aria-busy", controller ? "true" : "false");
}

// Writes the next reply to the conversation as it stands.
async function ask() {
  let body;
  try {
    body = request();
  } catch (e) {
    say(`The tools are not JSON: ${e.message}`, true);
    return;
  }
  const controller = new AbortController();
  const reply = new Reply();
  let how = "";
  setRunning(controller);
  say("Writing");
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", signal: controller.signal, body: JSON.stringify(body),
      headers: { "Content-Type": "application/json", ...headers() },
    });
    if (!response.ok) throw new Error(await refusal(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      reply.take(event);
    }
    how = { length: "cut at its limit", tool_calls: "calls tools" }[reply.reason] || "";
    say("The reply is complete");
  } catch (e) {
    how = e.name === "AbortError" ? "stopped" : "failed";
    say(e.name === "AbortError" ? "Stopped" : e.message, e.name !== "AbortError");
  }
  const m = reply.message;
  if (m.content || m.reasoning_content || m.tool_calls) messages.push(m);
  reply.end(how);
  setRunning(null);
  if (reply.reason !== "tool_calls") $("prompt").focus();
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("prompt").value;
  if (running || !text.trim()) return;
  messages.push({ role: "user", content: text });
  showUser(text);
  $("prompt").value = "";
  ask();
});

$("prompt").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  $("form").requestSubmit();
});

document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && running) running.abort();
});

$("stop").addEventListener("click", () => { if (running) running.abort(); });

$("clear").addEventListener("click", () => {
  if (running) running.abort();
  messages.length = 0;
  $("log").replaceChildren();
  say("A new chat");
  $("prompt").focus();
});

$("key").value = sessionStorage.getItem("key") || "";
$("key").addEventListener("change", () => sessionStorage.setItem("key", $("key").value));

// ---- the server's state ----

// Prometheus text: {name: [{labels, value}]}, without the prefix of our names.
function parseMetrics(text) {
  const all = {};
  for (const line of text.split("\n")) {
    const found = /^tokenfold_(\w+?)(?:\{(.*)\})? (\S+)$/.exec(line);
    if (!found) continue;
    const labels = {};
    for (const [, name, value] of (found[2] || "").matchAll(/(\w+)="([^"]*)"/g)) labels[name] = value;
    (all[found[1]] = all[found[1]] || []).push({ labels, value: Number(found[3]) });
  }
  return all;
}

function total(metrics, name) {
  return metrics[name] ? metrics[name].reduce((sum, m) => sum + m.value, 0) : undefined;
}

function labelled(metrics, name, label, value) {
  const found = (metrics[name] || []).find((m) => m.labels[label] === value);
  return found ? found.value : undefined;
}

let before = null; // the last sample, for rates

function rate(metrics, name, kind, now) {
  const value = labelled(metrics, name, "kind", kind);
  const last = before && labelled(before.metrics, name, "kind", kind);
  if (value === undefined || last === undefined || last === null || now <= before.now) return undefined;
  return (1000 * (value - last)) / (now - before.now);
}

function showFacts(facts) {
  const list = $("facts");
  list.replaceChildren();
  for (const [name, value] of facts) {
    if (value === undefined || value === null || Number.isNaN(value)) continue;
    list.append(element("dt", "", name), element("dd", "", String(value)));
  }
}

function hits(metrics) {
  const hit = labelled(metrics, "prompt_cache_requests_total", "result", "hit");
  const miss = labelled(metrics, "prompt_cache_requests_total", "result", "miss");
  return hit === undefined ? undefined : `${hit} of ${hit + miss}`;
}

function perSecond(value) {
  return value === undefined ? undefined : value.toFixed(value < 10 ? 1 : 0);
}

function showState(metrics, health) {
  const now = performance.now();
  const seated = labelled(metrics, "lanes", "state", "seated");
  const free = labelled(metrics, "lanes", "state", "free");
  showFacts([
    ["Running", seated === undefined ? health.running : `${seated} of ${seated + free} lanes`],
    ["Waiting", total(metrics, "requests_waiting") ?? health.waiting],
    ["Reply tokens/s", perSecond(rate(metrics, "tokens_total", "reply", now))],
    ["Prompt tokens/s", perSecond(rate(metrics, "tokens_total", "prompt", now))],
    ["Reply tokens", labelled(metrics, "tokens_total", "kind", "reply")],
    ["Cache hits", hits(metrics)],
    ["Rows resumed", total(metrics, "prompt_rows_resumed_total")],
  ]);
  before = { metrics, now };
}

// ---- lanes, the queue and the pool, from /state ----

const LANE_COLORS = ["#b4551d", "#2f6f8f", "#6b7d1f", "#8a4a8f", "#1f7d6b", "#a5352f", "#5a5fb0", "#8f6f2f"];

function laneColor(lane) {
  return LANE_COLORS[lane % LANE_COLORS.length];
}

function share(part, whole) {
  const bar = element("span", "bar"), fill = element("span");
  fill.style.width = `${whole > 0 ? Math.min(100, (100 * part) / whole) : 0}%`;
  bar.append(fill);
  return bar;
}

// One row a lane: who is on it, and how far the request is.
function showLanes(state) {
  const rows = [];
  for (let lane = 0; lane < state.n_lane; lane++) {
    const r = state.lanes.find((l) => l.lane === lane);
    const row = element("li", r ? "" : "quiet"), mark = element("span", "mark", String(lane));
    mark.style.background = r ? laneColor(lane) : "var(--free)";
    row.append(mark);
    if (!r) {
      row.append(element("span", "", "free"));
    } else {
      const prompt = r.state === "prompt", resumed = r.resumed ? `, ${r.resumed} resumed` : "";
      row.append(element("span", "", `request ${r.request}: ` + (prompt
        ? `prompt ${r.prompt_done} of ${r.prompt}${resumed}` : `reply ${r.reply} of ${r.longest}, prompt ${r.prompt}${resumed}`)));
      row.append(prompt ? share(r.prompt_done, r.prompt) : share(r.reply, r.longest));
    }
    rows.push(row);
  }
  $("lanes").replaceChildren(...rows);
}

function showQueue(state) {
  $("queue-part").hidden = state.n_waiting === 0;
  const rows = state.waiting.slice(0, 8).map((r) =>
    element("li", "", `request ${r.request}, prompt ${r.prompt}: ${r.reason}, ${(r.ms / 1000).toFixed(1)} s`));
  if (state.n_waiting > rows.length) rows.push(element("li", "quiet", `and ${state.n_waiting - rows.length} more`));
  $("queue").replaceChildren(...rows);
}

const PAGE_KINDS = [["shared", "read by several requests"], ["cached", "of the prompt cache alone"],
                    ["state", "of lanes' and kept states"], ["free", "free"]];

// The map's entry for each page, or for as many as an entry stands for: a kind, or {lane, stored}.
function pageCells(pages) {
  return pages.map.flatMap(([n, what]) => {
    const lane = /^(\d+)(\+?)$/.exec(what);
    return Array(n).fill(lane ? { lane: Number(lane[1]), stored: !lane[2] } : { kind: what });
  });
}

// One square a page, in the order in which they lie in memory; pages of a lane in its colour, and only outlined where
// nothing is stored in them yet.
function showPool(state) {
  const pages = state.pages;
  $("pool").hidden = !pages || pages.n === 0;
  if ($("pool").hidden) return;
  const cells = pageCells(pages), style = getComputedStyle(document.documentElement), canvas = $("pages");
  const columns = cells.length > 800 ? 64 : 32, side = cells.length > 800 ? 5 : 10;
  canvas.width = columns * side;
  canvas.height = Math.max(1, Math.ceil(cells.length / columns)) * side;
  const pen = canvas.getContext("2d");
  cells.forEach((cell, i) => {
    const x = (i % columns) * side, y = Math.floor(i / columns) * side;
    pen.fillStyle = pen.strokeStyle = cell.kind ? style.getPropertyValue("--" + cell.kind) : laneColor(cell.lane);
    if (cell.kind || cell.stored) pen.fillRect(x, y, side - 1, side - 1);
    else pen.strokeRect(x + 0.5, y + 0.5, side - 2, side - 2);
  });
  const count = (is) => cells.filter(is).length * pages.each;
  const named = state.lanes.map((l) => ({ color: laneColor(l.lane), text: `lane ${l.lane}, request ${l.request}: `
    + `${count((c) => c.lane === l.lane && c.stored)} in use, ${count((c) => c.lane === l.lane && !c.stored)} claimed` }));
  for (const [kind, text] of PAGE_KINDS) {
    const n = count((c) => c.kind === kind);
    if (n > 0) named.push({ color: style.getPropertyValue("--" + kind), text: `${n} ${text}` });
  }
  canvas.setAttribute("aria-label", `${pages.n} pages of ${pages.rows} positions: ` + named.map((n) => n.text).join("; "));
  $("legend").replaceChildren(...named.map(({ color, text }) => {
    const row = element("li"), mark = element("span", "mark");
    mark.style.background = color;
    row.append(mark, text);
    return row;
  }));
  $("pool-note").textContent = `${pages.n} pages of ${pages.rows} positions` + (pages.each > 1 ? `; a square is ${pages.each} of them` : "");
}

function showMachine(state) {
  $("machine").hidden = !state;
  if (!state) return;
  showLanes(state);
  showQueue(state);
  showPool(state);
}

async function get(path) {
  const response = await fetch(path, { headers: headers() });
  if (!response.ok) throw new Error(await refusal(response));
  return response;
}

// Routes that this server does not have leave their part of the page out.
async function look() {
  if (document.visibilityState !== "visible") return;
  let health;
  try {
    health = await (await get("/health")).json();
  } catch (e) {
    $("model").textContent = e.message;
    $("facts").replaceChildren();
    return;
  }
  let metrics = {};
  try {
    metrics = parseMetrics(await (await get("/metrics")).text());
  } catch {}
  showState(metrics, health);
  let state = null;
  try {
    state = await (await get("/state")).json();
  } catch {}
  showMachine(state);
}

async function introduce() {
  try {
    const model = (await (await get("/v1/models")).json()).data[0];
    $("model").textContent = `${model.id}, window of ${model.max_model_len} tokens`;
  } catch (e) {
    $("model").textContent = e.message;
    if (e.message.includes("API key")) $("settings").open = true;
    return;
  }
  try {
    const props = await (await get("/props")).json();
    $("sentence").textContent = props.sentence || "";
  } catch {}
}

$("key").addEventListener("change", introduce);
$("key-form").addEventListener("submit", (event) => event.preventDefault());
introduce();
look();
const looking = setInterval(look, 1000);
