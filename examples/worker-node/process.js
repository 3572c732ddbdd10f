// One task, in a process of its own: whatever the task does, the worker goes on.
'use strict';
const fs = require('node:fs');
const path = require('node:path');
const { spawn } = require('node:child_process');

const MOST_VALUE_BYTES = 32 << 20;

class Task {
  constructor(jobDir, modules, broker, lease) {
    Object.assign(this, { jobDir, modules, broker, lease });
    this.id = lease.task.id;
    this.step = 0;
    this.metrics = {};
    this.told = 'CONTINUE';
    this.ended = null; // why the worker has ended the process
  }

  // Return what a Renew says of it: what it has reported since the last one.
  report() {
    const report = { task_id: this.id, lease_id: this.lease.id, step: this.step, metrics: this.metrics };
    this.metrics = {};
    return report;
  }

  // Tell the program to stop, or to save. After the grace it is ended.
  order(order, graceMs) {
    if (order === 'CONTINUE' || order === this.told) return;
    this.told = order;
    const outcome = order === 'STOP' ? 'CANCELLED' : 'HANDED_BACK';
    setTimeout(() => this.end(outcome, ''), graceMs).unref();
    if (!this.child) return;
    if (this.child.connected) this.child.send({ order });
    else this.child.kill('SIGTERM');
  }

  end(outcome, error) {
    this.ended ??= { outcome, error };
    try {
      process.kill(-this.child.pid, 'SIGKILL'); // with all that it has started
    } catch { // it has ended
    }
  }

  // Run it; return its result, whatever it does.
  async run() {
    const began = Date.now();
    const root = path.join('search/tasks', this.id);
    let folder;
    let said;
    try {
      folder = this.claim(root);
      said = await this.runProgram(path.join(this.jobDir, root, 'log'), path.join(this.jobDir, folder));
    } catch (error) {
      said = { error: error.message };
    }
    const result = {
      task_id: this.id, lease_id: this.lease.id, outcome: 'SUCCEEDED', value: Buffer.alloc(0),
      started_at: began / 1000, seconds: (Date.now() - began) / 1000,
    };
    if (this.ended) Object.assign(result, this.ended);
    else if (this.told === 'CHECKPOINT') result.outcome = 'HANDED_BACK';
    else if ('value' in said) Object.assign(result, { value: Buffer.from(said.value), encoding: 'json' });
    else Object.assign(result, { outcome: 'FAILED', error: said.error });
    if (result.outcome === 'HANDED_BACK' && folder && this.holds(folder)) result.checkpoint = folder;
    return result;
  }

  // Whether there is anything in a folder.
  holds(folder) {
    const whole = path.join(this.jobDir, folder);
    return fs.existsSync(whole) && fs.readdirSync(whole).length > 0;
  }

  // Return a folder into which no other run writes: that of a run that was handed back, or a new one
  // with a copy of what the run before it left. A worker that was cut off may still write there.
  claim(root) {
    const given = this.lease.task.checkpoint;
    if (given && path.dirname(given) === root && fs.existsSync(path.join(this.jobDir, given))) return given;
    fs.mkdirSync(path.join(this.jobDir, root), { recursive: true });
    const run = (n) => path.join(root, `run-${n}`);
    let number = 1;
    while (fs.existsSync(path.join(this.jobDir, run(number)))) number += 1;
    fs.mkdirSync(path.join(this.jobDir, run(number))); // fails if another run was first
    const earlier = Array.from({ length: number - 1 }, (_, n) => run(number - 1 - n));
    const source = [...earlier, given].find((each) => each && this.holds(each));
    if (source) {
      const options = { recursive: true, verbatimSymlinks: true };
      fs.cpSync(path.join(this.jobDir, source), path.join(this.jobDir, run(number)), options);
    }
    const link = path.join(this.jobDir, root, `.link-${path.basename(run(number))}`);
    fs.symlinkSync(path.basename(run(number)), link);
    fs.renameSync(link, path.join(this.jobDir, root, 'checkpoint'));
    return run(number);
  }

  // Return { value: JSON text } or { error }.
  runProgram(log, checkpoint) {
    const { task } = this.lease;
    if (task.encoding && task.encoding !== 'json') throw new Error(`payloads in ${task.encoding} are unknown`);
    const what = JSON.parse(task.payload.toString());
    const output = fs.openSync(log, 'a', 0o600);
    const isNode = task.type === 'node';
    if (!isNode && task.type !== 'exec') throw new Error(`tasks of the type ${task.type} are unknown`);
    const argv = isNode
      ? [process.execPath, path.join(__dirname, 'task.js'), path.join(this.modules, String(what.target))]
      : ['/bin/sh', '-c', String(what.command)];
    this.child = spawn(argv[0], argv.slice(1), {
      cwd: path.join(this.jobDir, 'code'),
      env: { ...process.env, SEARCH_CHECKPOINT: checkpoint },
      stdio: ['pipe', isNode ? output : 'pipe', output, ...(isNode ? ['ipc'] : [])],
      detached: true, // a process group, which ends together
    });
    this.child.stdin.on('error', () => {}); // the program does not read
    this.child.stdin.end(`${JSON.stringify(what.arguments ?? {})}\n`);
    const limitMs = 1000 * task.time_limit_s;
    const limit = limitMs && setTimeout(() => this.end('TIMED_OUT',
      `the program ran longer than its limit, ${task.time_limit_s} s`), limitMs);
    let said = null;
    let printed = '';
    this.child.on('message', (message) => {
      if ('value' in message || 'error' in message) said = message;
      else Object.assign(this, { step: message.step, metrics: { ...this.metrics, ...message.metrics } });
    });
    this.child.stdout?.setEncoding('utf8').on('data', (text) => {
      fs.writeSync(output, text);
      printed = (printed + text).slice(-MOST_VALUE_BYTES);
    });
    return new Promise((resolve) => {
      this.child.on('error', (error) => resolve({ error: error.message }));
      this.child.on('close', (code, signal) => {
        clearTimeout(limit);
        fs.closeSync(output);
        if (!isNode && code === 0) said = lastLine(printed);
        resolve(said ?? { error: `the program ended with ${signal ?? `exit code ${code}`}` });
      });
    });
  }
}

function lastLine(printed) {
  const line = printed.trimEnd().split('\n').pop();
  try {
    return { value: JSON.stringify(JSON.parse(line)) };
  } catch {
    return { error: `the program's last line is not JSON: ${line.slice(0, 80)}` };
  }
}

module.exports = { Task };
