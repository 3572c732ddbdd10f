// The process of a `node` task: node task.js MODULE. Arguments are on its input, answers go by IPC.
//
// The module exports a function of (arguments, task), which may be asynchronous and returns what
// JSON can hold. `task.report(step, metrics)` tells the search how far it is and returns an order,
// CONTINUE, STOP or CHECKPOINT; `task.checkpoint` is a folder that the next run of the task finds.
'use strict';
const fs = require('node:fs');

let order = 'CONTINUE';
process.on('message', (message) => { order = message.order; });

const task = {
  checkpoint: process.env.SEARCH_CHECKPOINT,
  report(step, metrics) {
    process.send({ step, metrics });
    return order;
  },
};

async function main() {
  let said;
  try {
    const run = require(process.argv[2]);
    const value = await run(JSON.parse(fs.readFileSync(0, 'utf8')), task);
    said = { value: JSON.stringify(value ?? null) };
  } catch (error) {
    console.error(error);
    said = { error: `${error.name}: ${error.message}` };
  }
  process.send(said, () => process.exit(0));
}

main();
