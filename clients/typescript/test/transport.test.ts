import assert from "node:assert/strict";
import { execFile } from "node:child_process";
import { randomUUID } from "node:crypto";
import { once } from "node:events";
import { type AddressInfo, createServer, type Socket } from "node:net";
import { after, test } from "node:test";
import { promisify } from "node:util";
import { Client, Unavailable } from "semel";

const scope = `transport-${randomUUID()}`;
const server = process.env.SEMEL_URL ?? "http://127.0.0.1:4196";

/** Writes an answer, whose body has these bytes. */
type Write = (socket: Socket, body: Buffer) => unknown;

/** Starts a server in between that writes answers in its own way. It counts connections, and the claims of each request. */
async function between(write: Write) {
	const seen = { connections: 0, claims: [] as number[] };
	const sockets = new Set<Socket>();
	const serve = async (socket: Socket) => {
		let request = "";
		for await (const bytes of socket.setEncoding("latin1")) {
			request += bytes;
			const [head = "", body = ""] = request.split("\r\n\r\n", 2);
			if (body.length < Number(/content-length: *(\d+)/i.exec(head)?.[1] ?? Number.NaN)) {
				continue;
			}
			request = "";
			const items: Record<string, unknown>[] = JSON.parse(body).items;
			if (items[0]?.claim !== undefined) {
				seen.claims.push(items.length);
			}
			const answer = await fetch(server + head.split(" ")[1], {
				method: "POST",
				headers: { "content-type": "application/json" },
				body: Buffer.from(body, "latin1"),
			});
			await write(socket, Buffer.from(await answer.arrayBuffer()));
		}
	};
	const listener = createServer({ noDelay: true }, (socket) => {
		seen.connections++;
		sockets.add(socket);
		serve(socket).catch(() => socket.destroy()); // the client ended the connection
	});
	after(() => {
		listener.close();
		for (const socket of sockets) {
			socket.destroy();
		}
	});
	await once(listener.listen(0, "127.0.0.1"), "listening");
	return { url: `http://127.0.0.1:${(listener.address() as AddressInfo).port}`, seen };
}

function chunks(body: Buffer): Buffer[] {
	const parts: Buffer[] = [];
	for (let at = 0; at < body.length; at += 5) {
		const part = body.subarray(at, at + 5);
		parts.push(Buffer.from(`${part.length.toString(16)};ext="1"\r\n`), part, Buffer.from("\r\n"));
	}
	return [...parts, Buffer.from("0\r\nX-Trailer: 1\r\n\r\n")];
}

const forms: Record<string, { write: Write; kept: boolean }> = {
	"with a length": {
		kept: true,
		write: (socket, body) => {
			socket.write(`HTTP/1.1 200 OK\r\nCONTENT-LENGTH:${body.length}\r\n\r\n`);
			socket.write(body);
		},
	},
	"byte by byte": {
		kept: true,
		write: async (socket, body) => {
			for (const byte of Buffer.concat([
				Buffer.from(`HTTP/1.1 200 \r\nContent-Length: ${body.length}\r\n\r\n`),
				body,
			])) {
				await new Promise((next) => socket.write(Buffer.of(byte), next));
			}
		},
	},
	"in chunks": {
		kept: true,
		write: async (socket, body) => {
			socket.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n");
			for (const part of chunks(body)) {
				await new Promise((next) => socket.write(part, next));
			}
		},
	},
	"in chunks, at once": {
		kept: true,
		write: (socket, body) => {
			const head = Buffer.from("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n");
			socket.write(Buffer.concat([head, ...chunks(body)]));
		},
	},
	"behind another head": {
		kept: true,
		write: (socket, body) => {
			socket.write("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n");
			socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
		},
	},
	"that ends the connection": {
		kept: false,
		write: (socket, body) => {
			socket.write(`HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
		},
	},
	"until the end of the connection": {
		kept: false,
		write: (socket, body) => {
			socket.end(`HTTP/1.0 200 OK\r\n\r\n${body}`);
		},
	},
};

for (const [form, { write, kept }] of Object.entries(forms)) {
	test(`an answer ${form} is read`, async () => {
		const { url, seen } = await between(write);
		const client = new Client({ url, scope, holder: "ünïcode €😀" });
		const value = { text: "ünïcode €😀" };
		assert.deepEqual(await client.once(form, () => value), { value, replayed: false });
		assert.deepEqual(await client.once(form, () => assert.fail()), { value, replayed: true });
		assert.equal(seen.connections, kept ? 1 : 3);
	});
}

const faults: Record<string, Write> = {
	"is not HTTP": (socket) => socket.write("+OK\r\n\r\n"),
	"has a chunk without a length": (socket) =>
		socket.write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n\r\n"),
	"has a length that is no number": (socket, body) =>
		socket.write(`HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n${body}`),
	"has a head without an end": (socket) => socket.write(`HTTP/1.1 200 OK\r\nX: ${"x".repeat(100_000)}`),
	"ends too early": (socket, body) => {
		socket.end(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length + 1}\r\n\r\n${body}`);
	},
};

for (const [fault, write] of Object.entries(faults)) {
	test(`an answer that ${fault} is none`, async () => {
		const { url } = await between((socket, body) => {
			write(socket, body);
		});
		const client = new Client({ url, scope, retryFor: 1, lease: 300 });
		await assert.rejects(
			client.once(fault, () => assert.fail("it runs")),
			(reason) => reason instanceof Unavailable && !reason.ran,
		);
	});
}

test("calls that are made together share requests, and not all of them one", async () => {
	const { url, seen } = await between((socket, body) =>
		socket.write(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`),
	);
	const client = new Client({ url, scope });
	const calls = Array.from({ length: 100 }, (_, n) => client.once(`together-${n}`, () => n));
	const outcomes = await Promise.all(calls);
	assert.deepEqual(
		outcomes.map(({ value }) => value),
		Array.from(calls.keys()),
	);
	assert.deepEqual(
		seen.claims.sort((a, b) => b - a),
		[32, 32, 32, 4],
	);
	assert.equal(seen.connections, 4);
});

test("a connection that the server closed is replaced", async () => {
	const { url, seen } = await between((socket, body) => {
		socket.end(`HTTP/1.1 200 OK\r\nContent-Length: ${body.length}\r\n\r\n${body}`);
	});
	const client = new Client({ url, scope });
	assert.deepEqual(await client.once("replaced", () => 1), { value: 1, replayed: false });
	assert.ok(seen.connections >= 2);
});

test("bytes that nobody asked for are not the next answer", { timeout: 60_000 }, async () => {
	const head = (length: number) => `HTTP/1.1 200 OK\r\nContent-Length: ${length}\r\n\r\n`;
	for (const stale of [`${head(9)}{"items":`, `${head(2)}{}`, "\r\n"]) {
		const sockets: Socket[] = [];
		const { url, seen } = await between((socket, body) => {
			sockets.push(socket);
			socket.write(head(body.length) + body);
		});
		const client = new Client({ url, scope });
		const id = randomUUID();
		await client.once(id, () => 1);
		const [socket] = sockets;
		assert.ok(socket);
		const closed = once(socket, "close");
		socket.write(stale);
		await closed;
		assert.deepEqual(await client.once(id, () => assert.fail()), { value: 1, replayed: true });
		assert.equal(seen.connections, 2);
	}
	const { url, seen } = await between((socket, body) => {
		socket.write(`${head(body.length)}${body}${head(2)}{`);
	});
	const id = randomUUID();
	const client = new Client({ url, scope });
	await client.once(id, () => 1);
	assert.deepEqual(await client.once(id, () => assert.fail()), { value: 1, replayed: true });
	assert.equal(seen.connections, 3);
});

test("a connection that is kept does not keep the process", { timeout: 60_000 }, async () => {
	const program = `import { Client } from "semel";
		console.log((await new Client({ url: "${server}", scope: "${scope}" }).once("child", () => 17)).value);`;
	const { stdout } = await promisify(execFile)(process.execPath, ["--input-type=module", "--eval", program]);
	assert.equal(stdout, "17\n");
});
