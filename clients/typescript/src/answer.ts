/** An answer of the server, whatever its status. */
export interface Answer {
	status: number;
	/** In milliseconds, from `Retry-After`. */
	retryAfter: number | undefined;
	text: string;
}

/** The longest head of an answer, and the longest line of a chunk, in bytes. */
const mostHead = 64 << 10;

/**
 * Reads the answers of HTTP/1.1 on a connection, as their bytes arrive. `semel serve` states the
 * length of each. A server in between may write chunks, or end the connection behind an answer.
 */
export class AnswerReader {
	/** Whether another answer can follow the last one. */
	reusable = true;
	#state: "head" | "body" | "chunk" | "chunkEnd" | "trailer" = "head";
	#unread: Buffer = Buffer.alloc(0);
	#answer: Answer = { status: 0, retryAfter: undefined, text: "" };
	#parts: Buffer[] = [];
	/** Bytes of the body or the chunk that have not arrived. Infinity: it ends with the connection. */
	#left = 0;
	#chunked = false;

	/** Takes bytes, and returns the answer if that was its end. Throws if they are not HTTP. */
	read(bytes: Buffer): Answer | undefined {
		this.#unread = this.#unread.length === 0 ? bytes : Buffer.concat([this.#unread, bytes]);
		for (;;) {
			if (this.#state === "body") {
				const part = this.#unread.subarray(0, this.#left);
				this.#unread = this.#unread.subarray(part.length);
				this.#parts.push(part);
				this.#left -= part.length;
				if (this.#left > 0) {
					return undefined;
				}
				if (!this.#chunked) {
					return this.#whole();
				}
				this.#state = "chunkEnd";
			}
			const text = this.#until(this.#state === "head" ? "\r\n\r\n" : "\r\n");
			if (text === undefined) {
				return undefined;
			}
			switch (this.#state) {
				case "head":
					this.#begin(text);
					break;
				case "chunkEnd":
					this.#state = "chunk";
					break;
				case "chunk":
					this.#left = Number.parseInt(text, 16);
					if (!/^[0-9a-f]{1,8}\s*(;|$)/i.test(text)) {
						throw new Error("the answer has a chunk without a length");
					}
					this.#state = this.#left === 0 ? "trailer" : "body";
					break;
				case "trailer":
					if (text === "") {
						return this.#whole();
					}
			}
		}
	}

	/** Takes the end of the connection, and returns the answer if that was its end. Throws if the end is missing. */
	end(): Answer | undefined {
		if (this.#left !== Number.POSITIVE_INFINITY) {
			throw new Error("the connection ended before the answer");
		}
		return this.#whole();
	}

	/** Returns the text before a mark, unless the mark has not arrived. */
	#until(mark: string): string | undefined {
		const end = this.#unread.indexOf(mark, 0, "latin1");
		if (end < 0 && this.#unread.length > mostHead) {
			throw new Error("the answer has a head that is too long");
		}
		if (end < 0) {
			return undefined;
		}
		const text = this.#unread.toString("latin1", 0, end);
		this.#unread = this.#unread.subarray(end + mark.length);
		return text;
	}

	/** Reads a head. An answer with a status below 200 says that another one follows. */
	#begin(head: string): void {
		const [first = "", ...lines] = head.split("\r\n");
		const [, version, status] = /^HTTP\/1\.([01]) (\d{3})( |$)/.exec(first) ?? [];
		if (status === undefined) {
			throw new Error(`the answer is not HTTP/1.1: ${first.slice(0, 100)}`);
		}
		if (status.startsWith("1")) {
			return;
		}
		const headers = new Map<string, string>();
		for (const line of lines) {
			const colon = line.indexOf(":");
			headers.set(line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim());
		}
		const retryAfter = headers.get("retry-after") ?? "";
		this.#answer = {
			status: Number(status),
			retryAfter: /^\d+$/.test(retryAfter) ? Number(retryAfter) * 1000 : undefined,
			text: "",
		};
		const coding = headers.get("transfer-encoding");
		const length = headers.get("content-length");
		const empty = status === "204" || status === "304";
		this.#chunked = !empty && coding !== undefined && /(^|[\s,])chunked$/i.test(coding);
		const stated = coding === undefined && length !== undefined;
		if (stated && !/^\d+$/.test(length)) {
			throw new Error("the answer has no length");
		}
		this.#left = empty || this.#chunked ? 0 : stated ? Number(length) : Number.POSITIVE_INFINITY;
		const close = /(^|[\s,])close([\s,]|$)/i.test(headers.get("connection") ?? "");
		this.reusable = version === "1" && !close && Number.isFinite(this.#left);
		this.#state = this.#chunked ? "chunk" : "body";
	}

	#whole(): Answer {
		const body = this.#parts.length === 1 ? this.#parts[0] : Buffer.concat(this.#parts);
		this.#parts = [];
		this.#state = "head";
		this.#left = 0;
		this.reusable &&= this.#unread.length === 0;
		return { ...this.#answer, text: (body as Buffer).toString("utf8") };
	}
}
