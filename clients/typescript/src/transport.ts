import http from "node:http";
import https from "node:https";

/** An answer of the server, whatever its status. */
export interface Answer {
	status: number;
	/** In milliseconds, from `Retry-After`. */
	retryAfter: number | undefined;
	text: string;
}

/** Sends one request. Throws if there is no whole answer. */
export type Send = (method: string, path: string, body: string | undefined, timeout: number) => Promise<Answer>;

/**
 * Returns a function that sends requests to a URL such as `http://127.0.0.1:4196` or
 * `unix:/run/semel.sock`, over connections that are kept.
 */
export function transport(url: string, token: string | undefined, tls: https.AgentOptions): Send {
	const unix = url.startsWith("unix:");
	const base = new URL(unix ? "http://localhost" : url);
	if (base.protocol !== "http:" && base.protocol !== "https:") {
		throw new TypeError(`the URL ${url} begins with neither http://, https:// nor unix:`);
	}
	const secure = base.protocol === "https:";
	const agent = secure ? new https.Agent({ keepAlive: true, ...tls }) : new http.Agent({ keepAlive: true });
	const place = unix
		? { socketPath: url.slice("unix:".length) }
		: { host: base.hostname.replace(/^\[|\]$/g, ""), port: base.port || (secure ? 443 : 80) };
	const prefix = base.pathname.replace(/\/$/, "");
	const begin = secure ? https.request : http.request;

	return (method, path, body, timeout) =>
		new Promise((resolve, reject) => {
			const headers: http.OutgoingHttpHeaders = {};
			if (token !== undefined) {
				headers.authorization = `Bearer ${token}`;
			}
			if (body !== undefined) {
				headers["content-type"] = "application/json";
				headers["content-length"] = Buffer.byteLength(body);
			}
			const request = begin({ ...place, agent, method, path: prefix + path, headers });
			// A limit for the whole request: a peer may send a byte now and then.
			const timer = setTimeout(() => request.destroy(new Error(`no answer within ${timeout} ms`)), timeout);
			const fail = (reason: Error) => {
				clearTimeout(timer);
				reject(reason);
			};
			request.on("error", fail);
			request.on("response", (response) => {
				const parts: Buffer[] = [];
				response.on("data", (part: Buffer) => parts.push(part));
				response.on("error", fail);
				response.on("end", () => {
					clearTimeout(timer);
					resolve({
						status: response.statusCode ?? 0,
						retryAfter: seconds(response.headers["retry-after"]),
						text: Buffer.concat(parts).toString("utf8"),
					});
				});
			});
			request.end(body);
		});
}

function seconds(header: string | undefined): number | undefined {
	return header !== undefined && /^\d+$/.test(header) ? Number(header) * 1000 : undefined;
}
