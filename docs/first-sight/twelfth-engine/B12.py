"""An engine works in any thread, and holds Ctrl-C in the main thread, whatever thread imports it."""
import os, signal, sys, threading

os.environ.setdefault("JAX_PLATFORMS", "cpu")
wrong, made = [], []


def serve():  # a worker thread imports the engine when the first request arrives, and makes one
    from common import engine

    try:
        made.append(engine(8, 4, 2, 2))
    except Exception as error:
        wrong.append(f"an engine in a worker thread: {error!r}")


worker = threading.Thread(target=serve)
worker.start()
worker.join()

from impl.interrupts import hold_interrupts

events = []
signal.signal(signal.SIGINT, lambda *_: events.append("handler"))


def work():
    signal.raise_signal(signal.SIGINT)  # Ctrl-C during a call in the main thread
    events.append("the state is stored")


hold_interrupts(work)
if events != ["the state is stored", "handler"]:
    wrong.append(f"a call in the main thread with Ctrl-C in it: {events}")
print("\n".join(f"BUG: {text}" for text in wrong))
sys.exit(1 if wrong else 0)
