import type { CallOptions, Claim, Client } from "./client.js";
import { within } from "./current.js";
import { SemelError } from "./errors.js";
import { fingerprint } from "./key.js";

/** What this module uses of the second argument of a tool's handler. */
interface Extra {
	_meta?: Record<string, unknown> | undefined;
	authInfo?: { clientId: string } | undefined;
}

/** What this module uses of a tool's result. */
interface Result {
	content?: unknown;
	isError?: boolean | undefined;
}

export interface ToolOptions<E> extends CallOptions {
	/**
	 * Who calls. Default: the `clientId` of `authInfo`. Name the user if several have one clientId or none, or one
	 * gets what was done for another. The session does not tell: a caller that connects again has a new one.
	 */
	caller?(extra: E): string;
	/** The member of `_meta` in which a caller names the key. */
	meta?: string;
}

/** A result that says that the tool failed. It frees the key. */
class ToolFailed extends Error {
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
		const caller = options.caller ? options.caller(extra) : (extra.authInfo?.clientId ?? "");
		const named = extra._meta?.[options.meta ?? "idempotencyKey"];
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

function refusal<R>(text: string): R {
	return { isError: true, content: [{ type: "text", text }] } as R;
}
