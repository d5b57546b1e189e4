// What the page asks the service, with the key of whoever sits before it. The key is kept for this tab alone.

const KEPT = "toolscout.key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEPT) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEPT, value) : sessionStorage.removeItem(KEPT)),
};

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers["X-API-Key"] = key.get();
  const answer = await fetch(path, { ...options, headers, credentials: "omit", redirect: "error" });
  if (answer.ok) return answer;
  let text = `expected an answer, found status ${answer.status}`;
  try {
    text = (await answer.json()).error ?? text;
  } catch { /* no JSON: the status must do */ }
  throw new Refused(answer.status, text);
}

export async function get(path, parameters = {}, signal = undefined) {
  const given = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(given).toString();
  return (await ask(query ? `${path}?${query}` : path, { signal })).json();
}

export async function post(path, body, signal = undefined) {
  const options = { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json" }, signal };
  return (await ask(path, options)).json();
}

export async function upload(path, file) {
  return (await ask(path, { method: "POST", body: file, headers: { "Content-Type": "application/x-ndjson" } })).json();
}

export async function download(path) {
  return (await ask(path)).blob();
}
