// A live page asks its own server for a newer document; what the reader chose stays.
const ASK_EVERY = 2000; // milliseconds

async function follow(take) {
  const told = document.getElementById("live");
  let version = "";
  for (;;) {
    try {
      const answer = await fetch("data.json", { headers: version ? { "If-None-Match": version } : {}, cache: "no-store" });
      if (answer.status === 200) {
        version = answer.headers.get("ETag");
        take(await answer.json());
      }
      told.textContent = "live";
    } catch {
      told.textContent = "the server does not answer: the report stands still";
    }
    await new Promise((resume) => setTimeout(resume, document.hidden ? 5 * ASK_EVERY : ASK_EVERY));
  }
}
