# Many writers send puts at once, all with one condition that only one of them may pass, again and again. Runs inside
# the container of the store. usage: s3_writers.py PORT ROUNDS, where the port 0 stands for moto's own server, which
# this script starts, with threads that take turns more often than Python's usual. The rounds end when two puts have
# passed. Prints the rounds of each condition, and the most puts that passed in one.
import http.client, json, os, signal, socket, sys, threading, time

WRITERS = 16
HEADERS = {
    'Authorization': 'AWS4-HMAC-SHA256 Credential=harness/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0',
    'Content-Type': 'text/plain',
}


def serve():
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    sys.setswitchinterval(1e-6)
    sys.stderr = open(os.devnull, 'w')
    make_server('127.0.0.1', 9001, DomainDispatcherApplication(create_backend_app), threaded=True).serve_forever()


def ask(method, path, body, condition):
    connection = http.client.HTTPConnection('127.0.0.1', port, timeout=30)
    connection.request(method, path, body, {**HEADERS, **condition})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status, answer.getheader('ETag')


def passed(round, path, condition):
    start, statuses = threading.Barrier(WRITERS), []

    def write(writer):
        start.wait()
        statuses.append(ask('PUT', path, f'{round} by {writer} ' * 20_000, condition)[0])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Moto's own server also fails when two threads of it meet.
    known = {200, 409, 412} | ({500} if child else set())
    assert len(statuses) == WRITERS and set(statuses) <= known, statuses
    return statuses.count(200)


port, rounds = int(sys.argv[1]), int(sys.argv[2])
child = None
if port == 0:
    port, child = 9001, os.fork()
    if child == 0:
        serve()
try:
    for _ in range(300):
        try:
            socket.create_connection(('127.0.0.1', port)).close()
            break
        except OSError:
            time.sleep(0.1)
    assert ask('PUT', '/writers', '', {})[0] == 200
    results = {}
    for name in ('If-Match', 'If-None-Match'):
        most = 0
        for round in range(1, rounds + 1):
            if name == 'If-Match':
                path, condition = '/writers/one', {name: ask('PUT', '/writers/one', f'round {round}', {})[1]}
            else:
                path, condition = f'/writers/new-{round}', {name: '*'}
            count = passed(round, path, condition)
            most = max(most, count)
            if count > 1 or (count == 0 and not child):
                most = count
                break
        results[name] = {'rounds': round, 'most': most}
    print(json.dumps(results))
finally:
    if child:
        os.kill(child, signal.SIGKILL)
