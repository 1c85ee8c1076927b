import { createHash } from "node:crypto";

type Scalar = string | number | bigint | boolean;

/** The id of a key. A number is another id than the text with the same digits. An array is one composite id. */
export type Id = Scalar | readonly Scalar[] | Uint8Array;

/** An id that may be a part of a longer key. */
export type PartId = Exclude<Id, Uint8Array>;

/** The members of a request that name a key, as JSON text without braces. */
export function keyMembers(scope: string, id: Id): string {
	const named = id instanceof Uint8Array ? `"id_base64":"${Buffer.from(id).toString("base64")}"` : `"id":${text(id)}`;
	return `"scope":${JSON.stringify(scope)},${named}`;
}

function text(id: unknown): string {
	if (Array.isArray(id)) {
		return `[${id.map(scalar).join()}]`;
	}
	return scalar(id);
}

function scalar(value: unknown): string {
	if (typeof value === "bigint") {
		return String(value);
	}
	if (typeof value === "number" && (!Number.isFinite(value) || Math.abs(value) > Number.MAX_SAFE_INTEGER)) {
		throw new TypeError(`semel: the number ${value} is not exact: use a text or a bigint as the id`);
	}
	if (typeof value === "string" || typeof value === "number" || typeof value === "boolean") {
		return JSON.stringify(value);
	}
	throw new TypeError(`semel: an id is a text, number, bigint, boolean, bytes or an array, got ${typeof value}`);
}

/** The fingerprint of a payload: bytes as they are, all else as JSON in which the order of members does not count. */
export function fingerprint(payload: unknown): string {
	const bytes = payload instanceof Uint8Array ? payload : canonical(payload);
	return `sha256:${createHash("sha256").update(bytes).digest("hex")}`;
}

/** A value as JSON, its members by name. */
export function canonical(value: unknown): string {
	const byName = (_: string, member: unknown) =>
		member !== null && typeof member === "object" && !Array.isArray(member)
			? Object.fromEntries(Object.entries(member).sort(([a], [b]) => (a < b ? -1 : 1)))
			: member;
	return JSON.stringify(value, byName) ?? "null";
}
