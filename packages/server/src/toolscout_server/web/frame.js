// What the views share with the frame of the page: the address of a view, and what happens with an error.

import { Refused } from "./api.js";
import { say } from "./dom.js";

// Tells the frame that the service wants a key.
export const SIGN_IN = "toolscout:sign-in";

// Views write their state to the address, so that it can be bookmarked. A view that was left writes nothing.
export function remember(place, name, parameters) {
  if (!place.isConnected) return;
  const entries = Object.entries(parameters).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(entries).toString();
  history.replaceState(null, "", `#/${name}${query ? `?${query}` : ""}`);
}

export function report(error, place = document.getElementById("main")) {
  if (error.name === "AbortError" || !place.isConnected) return;
  if (error instanceof Refused && error.status === 401) document.dispatchEvent(new Event(SIGN_IN));
  else say(error.message);
  if (error instanceof TypeError || error instanceof ReferenceError) console.error(error); // a fault of this page
}
