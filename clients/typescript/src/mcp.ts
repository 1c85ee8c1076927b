import type { CallOptions, Claim, Client } from "./client.js";
import { within } from "./current.js";
import { SemelError } from "./errors.js";
import { fingerprint } from "./key.js";

/** What this module uses of the second argument of a tool's handler. */
interface Extra {
	_meta?: Record<string, unknown> | undefined;
	authInfo?: { clientId: string } | undefined;
	/** These are there if the server has a connection for each of several callers. */
	sessionId?: string | undefined;
	requestInfo?: unknown;
}

/** What this module uses of a tool's result. */
interface Result {
	content?: unknown;
	isError?: boolean | undefined;
}

export interface ToolOptions<E> extends CallOptions {
	/**
	 * Who calls. Default: the `clientId` of `authInfo`. Name the user if several have one clientId, or one gets what
	 * was done for another. A call over HTTP without a clientId is refused: the session does not tell who calls,
	 * because a caller that connects again has a new one. If there is only one caller, return "".
	 */
	caller?(extra: E): string;
	/** The member of `_meta` in which a caller names the key. */
	meta?: string;
}

/** A result that says that the tool failed. It frees the key. */
class ToolFailed extends SemelError {
	constructor(readonly result: unknown) {
		super("the tool failed");
	}
}

/**
 * Returns a handler for a tool of the MCP TypeScript SDK that runs once for a key: that
 * which the caller names in `_meta`, or else the caller, the tool and the arguments. A
 * repetition gets the same result.
 *
 *     server.registerTool("pay", config, tool(client, "pay", async ({ amount }) => ...))
 */
export function tool<A, E extends Extra, R extends Result>(
	client: Client,
	name: string,
	handler: (args: A, extra: E) => R | Promise<R>,
	options: ToolOptions<E> = {},
): (...call: [args: A, extra: E] | [extra: E]) => Promise<R> {
	return async (...call) => {
		// A tool without a schema gets no arguments.
		const [args, extra] = call.length === 1 ? [undefined as A, call[0]] : call;
		const caller = options.caller ? options.caller(extra) : callerOf(extra);
		if (caller === undefined) {
			return refusal(`semel: nothing ran: ${name} cannot tell its callers apart: name the option caller`);
		}
		const named = extra._meta?.[options.meta ?? "idempotencyKey"];
		if (named !== undefined && (typeof named !== "string" || named.trim() === "")) {
			return refusal("semel: nothing ran: the idempotency key in _meta is no text, or blank");
		}
		const id = fingerprint({ caller, name, ...(named === undefined ? { args } : { named }) });
		const run = async (claim: Claim) => {
			const result = await within(claim, () => handler(args, extra));
			if (result.isError) {
				throw new ToolFailed(result);
			}
			return result;
		};
		try {
			const { value } = await client.once(id, run, { scope: "mcp", payload: [name, args], ...options });
			return value;
		} catch (reason) {
			if (reason instanceof ToolFailed) {
				return reason.result as R;
			}
			if (reason instanceof SemelError) {
				return refusal(reason.message);
			}
			throw reason;
		}
	};
}

/** Returns undefined if a call may come from one of several callers, and does not say which. */
function callerOf({ authInfo, sessionId, requestInfo }: Extra): string | undefined {
	const alone = sessionId === undefined && requestInfo === undefined;
	return authInfo?.clientId || (alone ? "" : undefined);
}

function refusal<R>(text: string): R {
	return { isError: true, content: [{ type: "text", text }] } as R;
}
