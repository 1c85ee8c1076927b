export { type CallOptions, type Claim, Client, type ClientOptions, type Outcome, type Policy } from "./client.js";
export { current } from "./current.js";
export * from "./errors.js";
export type { Id } from "./key.js";
