import { LeaseLost, Refused, SemelError, Unavailable, Unknown } from "./errors.js";

/** What this module reads of an error. Libraries throw other objects as well. */
interface Failure {
	code?: unknown;
	syscall?: unknown;
	message?: unknown;
	name?: unknown;
	cause?: unknown;
	/** Of an AggregateError. */
	errors?: unknown;
	/** Of gRPC, beside a code that is a number. */
	details?: unknown;
}

/** Codes of Node, undici, axios, mysql and Prisma, and those of HTTP and HTTP/2 whose answer broke off. */
const openCodes =
	/^(ETIMEDOUT|ESOCKETTIMEDOUT|ECONNRESET|ECONNABORTED|EPIPE|EHOSTUNREACH|ENETUNREACH|ENETDOWN|UND_ERR_(SOCKET|HEADERS_TIMEOUT|BODY_TIMEOUT|ABORTED)|ERR_CANCELED|ERR_STREAM_PREMATURE_CLOSE|ERR_HTTP2_(STREAM|SESSION|GOAWAY)\w*|HPE_.*|PROTOCOL_CONNECTION_LOST|PROTOCOL_SEQUENCE_TIMEOUT|P1008|P1017|ETIMEOUT|CONNECTION_(CLOSED|DESTROYED)|UND_ERR_RES_CONTENT_LENGTH_MISMATCH)$/;
const notSentCodes = /^(ECONNREFUSED|ENOTFOUND|EAI_AGAIN|UND_ERR_CONNECT_TIMEOUT)$/;
/** States of SQL: a connection that failed, a server that shut down, an outcome that is unknown. */
const openStates = /^(08(?!001|004)\w{3}|57P0[12]|40003)$/;

/**
 * Names of classes. A request that waited for a connection was not sent; one whose name only ends so, such as
 * APIConnectionTimeoutError, may be late.
 */
const openNames =
	/time_?d?out|socketclosed|disconnects|abort(ed)?error|cancell?ederror|disconnected|connection(closed|reset|aborted|lost)/i;
const notSentNames =
	/\b(sequelize)?((connect|connection|pool|(connection)?acquire)timeout|connectiontimedout|connectionrefused|hostnotfound)|serverselection/i;
/** They decide if no cause says more. */
const weakNames = /connectionerror|networkerror/i;

const openTexts = /^connection (is )?(terminated|closed|lost)|server closed the connection|^(query read|command) time/i;
const notSentTexts = /before secure TLS connection|due to connection timeout/;
const noChannel = /no connection established|name resolution|failed to connect/i;

/** Reports whether an effect that failed so may have taken place. */
export function leaves(reason: unknown): boolean {
	return verdict(reason, new Set()) ?? false;
}

/**
 * Returns undefined for an error that says nothing. A library wraps the error of its connection, so the first one of
 * the chain that says anything decides.
 */
function verdict(reason: unknown, seen: Set<unknown>): boolean | undefined {
	if (typeof reason !== "object" || reason === null || seen.has(reason)) {
		return undefined;
	}
	seen.add(reason);
	return said(reason) ?? ofMembers(reason, seen) ?? verdict((reason as Failure).cause, seen) ?? ifNothingElse(reason);
}

function said(reason: Failure): boolean | undefined {
	if (reason instanceof SemelError) {
		const ran = (reason instanceof Unavailable || reason instanceof Refused) && reason.ran;
		return ran || reason instanceof Unknown || reason instanceof LeaseLost;
	}
	const { code, syscall, details } = reason;
	const [names, text] = [namesOf(reason), String(reason.message)];
	if (typeof code === "number" && typeof details === "string") {
		// gRPC: cancelled, late, or unavailable, which is also the code of a server that is not there
		return code === 1 || code === 4 || (code === 14 && !noChannel.test(details)) ? true : undefined;
	}
	if (syscall === "connect" || notSentCodes.test(String(code)) || notSentNames.test(names) || notSentTexts.test(text)) {
		return false;
	}
	const open = openCodes.test(String(code)) || openStates.test(String(code)) || openNames.test(names);
	return open || openTexts.test(text) ? true : undefined;
}

function ifNothingElse(reason: Failure): boolean | undefined {
	return weakNames.test(namesOf(reason)) ? true : undefined;
}

/** One of several errors that leaves it open is enough. */
function ofMembers({ errors }: Failure, seen: Set<unknown>): boolean | undefined {
	const verdicts = Array.isArray(errors) ? errors.map((member) => verdict(member, seen)) : [];
	return verdicts.includes(true) ? true : verdicts.includes(false) ? false : undefined;
}

/** The name of an error, and those of its classes: not all libraries give an error a name. */
function namesOf(reason: Failure): string {
	const names = [String(reason.name)];
	for (let kind = Object.getPrototypeOf(reason); kind !== null; kind = Object.getPrototypeOf(kind)) {
		names.push(String(kind.constructor?.name));
	}
	return names.join(" ");
}
