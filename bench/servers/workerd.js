// The same object in JavaScript: POST /{name}/{increment|read|fill}, the answer is a JSON number.
import { DurableObject } from "cloudflare:workers";

const PIECE_KIB = 1000;

export class Counter extends DurableObject {
  constructor(ctx, env) {
    super(ctx, env);
    this.sql = ctx.storage.sql;
    const born = this.sql.exec("SELECT 1 FROM sqlite_master WHERE name = 'c'").toArray().length > 0;
    if (!born) {
      this.sql.exec("CREATE TABLE c (n INTEGER NOT NULL)");
      this.sql.exec("INSERT INTO c VALUES (0)");
      this.sql.exec("CREATE TABLE ballast (piece BLOB NOT NULL)");
    }
  }

  increment() {
    return this.sql.exec("UPDATE c SET n = n + 1 RETURNING n").one().n;
  }

  read() {
    return this.sql.exec("SELECT n FROM c").one().n;
  }

  fill(kib) {
    for (let at = 0; at < kib; at += PIECE_KIB) {
      const piece = new Uint8Array(1024 * Math.min(PIECE_KIB, kib - at));
      for (let i = 0; i < piece.length; i += 65536) crypto.getRandomValues(piece.subarray(i, i + 65536));
      this.sql.exec("INSERT INTO ballast VALUES (?)", piece);
    }
    return kib;
  }
}

export default {
  async fetch(request, env) {
    const [, name, method] = new URL(request.url).pathname.split("/");
    const counter = env.COUNTERS.get(env.COUNTERS.idFromName(name));
    if (method === "increment") return Response.json(await counter.increment());
    if (method === "read") return Response.json(await counter.read());
    if (method === "fill") return Response.json(await counter.fill((await request.json())[0]));
    return new Response("no such method", { status: 404 });
  },
};
