// Requests of the page to the service, with the API key of the user. The key is kept for this tab only.

const KEY_ITEM = "toolscout.key";

export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY_ITEM) ?? "",
  set: (value) => (value ? sessionStorage.setItem(KEY_ITEM, value) : sessionStorage.removeItem(KEY_ITEM)),
};

async function ask(path, options = {}) {
  const headers = { ...options.headers };
  if (key.get()) headers["X-API-Key"] = key.get();
  const answer = await fetch(path, { ...options, headers, credentials: "omit", redirect: "error" }).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The service does not answer. Is it running?");
  });
  if (answer.ok) return answer;
  let text = `The service answered with status ${answer.status}.`;
  try {
    text = (await answer.json()).error ?? text;
  } catch { /* not JSON: show the status */ }
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
