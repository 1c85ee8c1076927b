import net from "node:net";
import tls from "node:tls";
import { type Answer, AnswerReader } from "./answer.js";

/** Sends a body of JSON. Throws if there is no whole answer. */
export type Send = (path: string, body: string, timeout: number) => Promise<Answer>;

/**
 * Returns a function that sends requests to a URL such as `http://127.0.0.1:4196` or
 * `unix:/run/semel.sock`, over connections that are kept. It writes HTTP itself: node:http takes
 * longer for a request than all else that this package does for the calls in it.
 */
export function transport(url: string, token: string | undefined, certificates: tls.SecureContextOptions): Send {
	const unix = url.startsWith("unix:");
	const base = new URL(unix ? "http://localhost" : url);
	if (base.protocol !== "http:" && base.protocol !== "https:") {
		throw new TypeError(`the URL ${url} begins with neither http://, https:// nor unix:`);
	}
	if (token !== undefined && !/^[\x21-\x7e]+$/.test(token)) {
		throw new TypeError("the token has characters that a header cannot hold");
	}
	const secure = base.protocol === "https:";
	const host = base.hostname.replace(/^\[|\]$/g, "");
	const place = { host, port: Number(base.port || (secure ? 443 : 80)), noDelay: true, keepAlive: true };
	const dial = (): net.Socket => {
		if (secure) {
			const named = net.isIP(host) === 0 ? { servername: host } : {};
			return tls.connect({ ...place, ...named, ALPNProtocols: ["http/1.1"], ...certificates });
		}
		return unix ? net.connect(url.slice("unix:".length)) : net.connect(place);
	};
	const prefix = base.pathname.replace(/\/$/, "");
	const authorization = token === undefined ? "" : `Authorization: Bearer ${token}\r\n`;
	const head = `HTTP/1.1\r\nHost: ${base.host}\r\n${authorization}Content-Type: application/json\r\nContent-Length:`;

	const idle = new Set<Connection>();
	return async (path, body, timeout) => {
		const [kept] = idle;
		const connection = kept ?? new Connection(dial(), (ended) => idle.delete(ended));
		idle.delete(connection);
		const length = Buffer.byteLength(body);
		const request = `POST ${prefix}${path} ${head} ${length}\r\n\r\n${body}`;
		const answer = await connection.exchange(request, length === body.length ? "latin1" : "utf8", timeout);
		if (connection.open) {
			idle.add(connection);
		}
		return answer;
	};
}

/** A connection for one request at a time. While it has none, it does not keep the process alive. */
class Connection {
	readonly #reader = new AnswerReader();
	/** Of the request that is on its way. */
	#resolve: ((answer: Answer) => void) | undefined;
	#reject: ((reason: Error) => void) | undefined;
	#timer: NodeJS.Timeout | undefined;

	constructor(
		private readonly socket: net.Socket,
		private readonly ended: (connection: Connection) => void,
	) {
		socket.on("data", (bytes) => this.#read(() => this.#reader.read(bytes)));
		socket.on("end", () => this.#read(() => this.#reader.end()));
		socket.on("error", (reason) => this.#fail(reason));
		socket.on("close", () => this.#fail(new Error("the connection was closed before the answer")));
	}

	/** Whether it can take another request. */
	get open(): boolean {
		return !this.socket.destroyed;
	}

	exchange(request: string, encoding: BufferEncoding, timeout: number): Promise<Answer> {
		return new Promise((resolve, reject) => {
			this.#resolve = resolve;
			this.#reject = reject;
			// A limit for the whole request: a peer may send a byte now and then.
			this.#timer = setTimeout(() => this.#fail(new Error(`no answer within ${timeout} ms`)), timeout);
			this.socket.ref();
			this.socket.write(request, encoding);
		});
	}

	#read(from: () => Answer | undefined): void {
		if (this.#resolve === undefined) {
			// It ended, or bytes came that would be read as the answer to the next request.
			this.#fail(new Error("the connection is not quiet"));
			return;
		}
		let answer: Answer | undefined;
		try {
			answer = from();
		} catch (reason) {
			this.#fail(reason as Error);
			return;
		}
		if (answer === undefined) {
			return;
		}
		if (!this.#reader.reusable) {
			this.socket.destroy();
		}
		this.#settle()?.resolve(answer);
	}

	#fail(reason: Error): void {
		this.socket.destroy();
		this.ended(this);
		this.#settle()?.reject(reason);
	}

	/** Ends the request that is on its way, if there is one. */
	#settle() {
		const [resolve, reject] = [this.#resolve, this.#reject];
		this.#resolve = this.#reject = undefined;
		clearTimeout(this.#timer);
		this.socket.unref();
		return resolve && reject && { resolve, reject };
	}
}
