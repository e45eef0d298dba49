// Servers and clients of Node.js: HTTP with connections that are kept, and streams whose ends come one after the other.
//
//   node sockets.js serve PORT    HTTP at PORT; at PORT + 1 streams that the client ends first, at PORT + 2 the server
//   node sockets.js ask PORT      asks them, and compares every byte
'use strict';
const http = require('http');
const net = require('net');
const { once } = require('events');
const { createCipheriv } = require('crypto');
const { pipeline } = require('stream/promises');
const { setTimeout: pause } = require('timers/promises');

const host = '127.0.0.1';
const [mode, port] = [process.argv[2], Number(process.argv[3])];

// The bytes that belong to a number.
function bytes(number, length) {
    const key = Buffer.alloc(16);
    key.writeUInt32LE(number);
    return createCipheriv('aes-128-ctr', key, Buffer.alloc(16)).update(Buffer.alloc(length));
}

// What comes, until the end.
async function all(stream) {
    const pieces = [];
    stream.on('data', piece => pieces.push(piece));
    await once(stream, 'end');
    return Buffer.concat(pieces);
}

// So many bytes, as soon as they are there.
async function take(stream, length) {
    for (;;) {
        const taken = stream.read(length);
        if (taken !== null)
            return taken;
        await once(stream, 'readable');
    }
}

// In pieces of a size that nothing else has, and no faster than they are taken.
async function send(stream, buffer) {
    for (let at = 0; at < buffer.length; at += 10007)
        if (!stream.write(buffer.subarray(at, at + 10007)))
            await once(stream, 'drain');
}

function processor() {
    const { user, system } = process.cpuUsage();
    return user + system;
}

// ---- servers -------------------------------------------------------------------------------------------------

// Streams that this side ended first, after which it received what it should, or something else.
const received = { same: 0, different: 0 };
const lengthOfStream = 700000;
// Short answers that each stream begins with, so that it is upgraded.
const greetings = 20;

async function answer(request, response) {
    const [, number, length] = request.url.split('/').map(Number);
    switch (request.method) {
    case 'GET':
        if (request.url === '/processor' || request.url === '/received')
            return response.end(JSON.stringify(request.url === '/processor' ? processor() : received));
        await send(response, bytes(number, length));
        return response.end();
    case 'POST':
        return response.end((await all(request)).equals(bytes(number, length)) ? 'same' : 'different');
    default:
        return pipeline(request, response);
    }
}

async function endFirst(connection) {
    for (let at = 0; at < greetings; at++)
        connection.write(await take(connection, 1));
    await send(connection, bytes(1, lengthOfStream));
    connection.end();
    received[(await all(connection)).equals(bytes(2, lengthOfStream)) ? 'same' : 'different']++;
}

function fail(error) {
    console.error(error);
    process.exit(1);
}

function serve() {
    const server = http.createServer((request, response) => answer(request, response).catch(fail));
    server.keepAliveTimeout = 60000;
    net.createServer({ allowHalfOpen: true }, connection => connection.pipe(connection)).listen(port + 1, host);
    net.createServer({ allowHalfOpen: true }, connection => endFirst(connection).catch(fail)).listen(port + 2, host);
    server.listen(port, host);
}

// ---- clients -------------------------------------------------------------------------------------------------

function check(holds, what) {
    if (!holds)
        throw new Error(what);
}

async function ask(agent, method, path, body) {
    const request = http.request({ host, port, agent, method, path });
    // What is sent back is read meanwhile: else both sides might wait for room.
    const answer = once(request, 'response').then(([response]) => all(response));
    await send(request, body ?? Buffer.alloc(0));
    request.end();
    return answer;
}

// A client with connections of its own: downloads, uploads, and both at once.
async function askForFiles(number) {
    const agent = new http.Agent({ keepAlive: true, maxSockets: 2 });
    const step = async at => {
        const length = at % 10 === 9 ? 1500000 + at : 1 + at * at * 7;
        const [path, own] = [`/${number}/${length}`, bytes(number, length)];
        check((await ask(agent, 'GET', path)).equals(own), `download ${path}`);
        check(String(await ask(agent, 'POST', path, own)) === 'same', `upload ${path}`);
        check((await ask(agent, 'PUT', '/', own)).equals(own), `echo ${path}`);
    };
    for (let at = 0; at < 20; at += 2)
        await Promise.all([step(at), step(at + 1)]);
    return agent;
}

// A connection, after some answers to short questions.
async function connect(to, number, count) {
    const connection = net.connect({ host, port: to, allowHalfOpen: true });
    for (let at = 0; at < count; at++) {
        const own = bytes(number + at, to === port + 2 ? 1 : 1 + at % 50);
        connection.write(own);
        check((await take(connection, own.length)).equals(own), 'an answer');
    }
    return connection;
}

// The other side sends everything back, also what it reads after this side's end.
async function endBefore(number) {
    const own = bytes(number, lengthOfStream);
    const connection = await connect(port + 1, number, greetings);
    const there = all(connection);
    await send(connection, own);
    connection.end();
    check((await there).equals(own), 'what came back');
}

// The other side has ended before this one sends.
async function endAfter(number) {
    const connection = await connect(port + 2, number, greetings);
    check((await all(connection)).equals(bytes(1, lengthOfStream)), 'what came before the end');
    await send(connection, bytes(2, lengthOfStream));
    connection.end();
}

async function askAll() {
    const numbers = [1, 2, 3, 4, 5, 6];
    const agents = await Promise.all(numbers.map(askForFiles));
    await Promise.all(numbers.map(endBefore));
    await Promise.all(numbers.map(endAfter));
    const open = await Promise.all(numbers.map(number => connect(port + 1, number, 200)));

    let found;
    do
        found = JSON.parse(await ask(agents[0], 'GET', '/received'));
    while (found.same + found.different < numbers.length);
    check(found.different === 0, 'what was sent after the end');

    // Connections on which nothing happens take no time of a processor.
    await pause(200);
    const before = [processor(), JSON.parse(await ask(agents[0], 'GET', '/processor'))];
    await pause(1000);
    const after = [processor(), JSON.parse(await ask(agents[0], 'GET', '/processor'))];
    const taken = after.map((time, at) => time - before[at]);
    check(Math.max(...taken) < 250000, `idle, and ${taken} us of the processors taken`);
    open.forEach(connection => connection.destroy());
    agents.forEach(agent => agent.destroy());
    console.log(`while nothing happened: client ${taken[0]} us, server ${taken[1]} us`);
}

if (mode === 'serve') {
    serve();
} else {
    setTimeout(() => fail(new Error('no end')), 30000).unref();
    askAll().catch(fail);
}
