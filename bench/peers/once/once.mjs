// Calls once by concurrent tasks, with the client of semel serve or with ioredis, and prints the seconds.
import { createRequire } from "node:module";

const [kind, address, calls, tasks, client, packages] = process.argv.slice(2);

const makers = {
	async semel() {
		const { Client } = await import(client);
		const semel = new Client({ url: `http://${address}`, scope: "bench" });
		return { once: async (key, fn) => (await semel.once(key, fn)).value, close: () => {} };
	},
	// As guides show it. No command compares anything, so it has no fencing.
	async redis() {
		const Redis = createRequire(packages)("ioredis");
		const [host, port] = address.split(":");
		const redis = new Redis(Number(port), host);
		const once = async (key, fn) => {
			if ((await redis.set(key, "claimed", "EX", 30, "NX")) !== "OK") {
				return JSON.parse(await redis.get(key));
			}
			const result = await fn();
			await redis.set(key, JSON.stringify(result), "EX", 86400);
			return result;
		};
		return { once, close: () => redis.quit() };
	},
};

const { once, close } = await makers[kind]();
let effects = 0;

async function run(first, end, step) {
	for (let number = first; number < end; number += step) {
		const result = await once(`order-${number}`, async () => {
			effects++;
			return { order: number };
		});
		if (result.order !== number) {
			throw new Error(`the result of ${number} is ${JSON.stringify(result)}`);
		}
	}
}

async function all(first, end) {
	await Promise.all(Array.from({ length: Number(tasks) }, (_, task) => run(first + task, end, Number(tasks))));
}

await all(-tasks, 0); // connections are there before the clock runs
const began = performance.now();
await all(0, Number(calls));
const took = (performance.now() - began) / 1000;
await close();
if (effects !== Number(calls) + Number(tasks)) {
	throw new Error(`${effects} effects of ${calls} calls and ${tasks} before them`);
}
process.stdout.write(`${took}\n`, () => process.exit(0));
