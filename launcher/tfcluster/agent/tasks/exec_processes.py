"""Commands beside the tasks of a node (`tfcluster exec`), each in the environment of its task.

Such a process is no task: nothing waits for it, and no log has what it writes. It ends with the
user's command, with its task, and with the agent, and what it has started ends with it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import selectors
import signal
import struct
import termios
from collections.abc import Callable, Collection

from tfcluster.agent import budgets, exec_frames
from tfcluster.agent import catalogue as msg
from tfcluster.agent.error_text import describe_error
from tfcluster.agent.exec_frames import STDERR, STDIN, STDOUT, Receiving, Sending
from tfcluster.agent.guard import Recorder
from tfcluster.agent.net.coordinator_link import CoordinatorLink
from tfcluster.agent.processes import descendants, signal_group, start_time
from tfcluster.agent.protocol import ProtocolError
from tfcluster.agent.tasks import stray_processes
from tfcluster.agent.tasks.task import EVENTS_SOCKET, StartError, Task, environment, exec_or_report

_MARK = "TFCLUSTER_EXEC"
"""The variable by which the agent finds what a command has started and left."""
_MOST_LEFT = 4 << 20
"""The bytes that are read from a stream after the end of its process: a pipe holds fewer."""


class ExecProcesses:
    """The commands that run beside the tasks of this node."""

    def __init__(
        self, recorder: Recorder, selector: selectors.BaseSelector, link: CoordinatorLink
    ) -> None:
        self._recorder, self._selector, self._link = recorder, selector, link
        self._running: dict[int, ExecProcess] = {}
        self._token = os.urandom(8).hex()

    def start(self, order: msg.Exec, task: Task | None) -> None:
        """Start a command beside a running task; None: there is no such task."""
        try:
            if task is None:
                raise StartError(f"{order.task} does not run")
            if len(self._running) >= budgets.EXEC_COMMANDS:
                raise StartError(f"{budgets.EXEC_COMMANDS} commands run on its node already")
            mark = f"{self._token}-{order.id}"
            process = ExecProcess(order, task, mark, self._selector, self._link)
        except (OSError, StartError) as error:
            self._link.send(msg.ExecFailed(id=order.id, error=describe_error(error)))
            return
        self._running[order.id] = process
        self._recorder.add_group(process.pid, process.start_time)

    def take(self, name: str, offset: int, data: bytes) -> None:
        """Take a frame; a wrong one ends its command, and one of an ended command is ignored."""
        number = -1
        try:
            number, stream = exec_frames.parse_name(name)
            if number in self._running:
                self._running[number].take(stream, offset, data)
        except ProtocolError:
            self.end(number)

    def end(self, number: int) -> None:
        """Kill a command; its end is reported as any other."""
        if number in self._running:
            self._running[number].kill()

    def end_of_task(self, task: str) -> None:
        """Kill the commands beside a task that has ended."""
        for process in self._running.values():
            if process.task == task:
                process.task_has_ended = True
                process.kill()

    def end_all(self) -> None:
        for process in self._running.values():
            process.kill()

    def note_end(self, pid: int, status: int) -> None:
        """Note that a child of the agent has ended."""
        if os.WIFEXITED(status) or os.WIFSIGNALED(status):
            for process in self._running.values():
                if process.pid == pid:
                    process.status = status

    def finish_ended(self, reap: Callable[[], None]) -> None:
        """Report the ended commands, after their last output; `reap` reaps all children."""
        for process in [each for each in self._running.values() if each.status is not None]:
            del self._running[process.id]
            others = {each.pid for each in self._running.values()}
            process.finish(others, reap)
            self._recorder.drop_group(process.pid)
            self._link.send(process.end_report())

    def finish_all(self, reap: Callable[[], None]) -> None:
        """Report the commands as ended: all processes of the agent have been killed."""
        for process in self._running.values():
            if process.status is None:
                process.status, process.task_has_ended = int(signal.SIGKILL), True
        self.finish_ended(reap)


class ExecProcess:
    """A command's process, with the agent's ends of its streams."""

    def __init__(
        self,
        order: msg.Exec,
        task: Task,
        mark: str,
        selector: selectors.BaseSelector,
        link: CoordinatorLink,
    ) -> None:
        """Fork. It reports by itself that its program runs: a hung disk may keep it from that.

        Raises OSError.
        """
        self.id, self.task, self.task_has_ended = order.id, task.name, False
        self._mark = mark
        self.status: int | None = None
        """The wait status, once its pid has ended."""
        self._selector, self._link = selector, link
        self._watched: dict[int, int] = {}
        self._has_terminal = order.terminal is not None
        self._input, self._to_process, self._ends_input = -1, bytearray(), False
        self._receiving = Receiving(order.id, STDIN)
        self._outputs: dict[int, Sending] = {}
        self._failed_read, self._problem = -1, bytearray()
        theirs: list[int] = []
        try:
            theirs += self._open(order.terminal)
            self._failed_read, failed_write = os.pipe()
            theirs.append(failed_write)
            process = beside(order, task.order, mark)
            self.pid = _fork(process, theirs, has_terminal=self._has_terminal)
        except BaseException:
            self.close()
            raise
        finally:
            for descriptor in {*theirs}:
                os.close(descriptor)
        self.start_time = start_time(self.pid)
        for descriptor in (self._failed_read, self._input, *self._outputs):
            os.set_blocking(descriptor, False)
        self._selector.register(
            self._failed_read, selectors.EVENT_READ, lambda _: self._note_start()
        )
        self._watch()

    def _note_start(self) -> None:
        """Read why its program does not run; the end of the file without a reason: it runs."""
        with contextlib.suppress(BlockingIOError):
            while self._failed_read >= 0:
                reason = os.read(self._failed_read, 4096)
                self._problem += reason
                if not reason:
                    self._close_failed_read()
                    if not self._problem:
                        self._link.send(msg.ExecStarted(id=self.id))

    def _close_failed_read(self) -> None:
        if self._failed_read >= 0:
            with contextlib.suppress(KeyError):  # it was not watched yet
                self._selector.unregister(self._failed_read)
            os.close(self._failed_read)
            self._failed_read = -1

    def _open(self, terminal: msg.Terminal | None) -> list[int]:
        """Open the streams; return the process's ends: stdin, stdout, stderr."""
        if terminal is not None:
            near, far = os.openpty()
            self._outputs[near], self._input = Sending(self.id, STDOUT), os.dup(near)
            self._resize(terminal.rows, terminal.columns)
            return [far] * 3
        stdin, self._input = os.pipe()
        theirs = [stdin]
        for stream in (STDOUT, STDERR):
            near, far = os.pipe()
            self._outputs[near] = Sending(self.id, stream)
            theirs.append(far)
        return theirs

    def take(self, stream: str, offset: int, data: bytes) -> None:
        """Take a frame. Raises ProtocolError."""
        if stream == exec_frames.SIZE:
            self._resize(*exec_frames.parse_size(data))
        elif stream == STDIN:
            self._receiving.take(offset, data)
            self._to_process += data
            self._ends_input = self._ends_input or not data
            self._write()
        else:
            for sending in self._outputs.values():
                if sending.stream == stream:
                    sending.note_written(offset)
        self._watch()

    def kill(self) -> None:
        """Kill it with all that is below it; `finish` finds what has left it."""
        if self.status is None:
            pids = [self.pid, *descendants(self.pid)]  # itself: it may have no group yet
            signal_group(self.pid, self.start_time, signal.SIGKILL)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)

    def finish(self, others: Collection[int], reap: Callable[[], None]) -> None:
        """Kill what it has left, and send the rest of its output; `others`: commands that go on."""
        signal_group(self.pid, self.start_time, signal.SIGKILL)
        left = stray_processes.carries({f"{_MARK}={self._mark}".encode()})
        stray_processes.end(others, left, reap)
        self._note_start()
        for output in [*self._outputs]:
            most = _MOST_LEFT
            while most > 0 and (count := self._read(output, exec_frames.CHUNK)):
                most -= count
        self.close()

    def end_report(self) -> msg.ExecEnded | msg.ExecFailed:
        if self._problem:
            return msg.ExecFailed(id=self.id, error=self._problem.decode(errors="replace"))
        status = self.status or 0
        signaled = os.WIFSIGNALED(status)
        return msg.ExecEnded(
            id=self.id,
            exit_code=None if signaled else os.WEXITSTATUS(status),
            signal=os.WTERMSIG(status) if signaled else None,
            task_has_ended=self.task_has_ended,
        )

    def close(self) -> None:
        for output in [*self._outputs]:
            self._close_output(output)
        self._close_input()
        self._close_failed_read()

    def _resize(self, rows: int, columns: int) -> None:
        """Set the size of its terminal, whose foreground processes then get SIGWINCH."""
        if self._has_terminal and self._input >= 0:
            sides = (max(0, min(side, 0xFFFF)) for side in (rows, columns))
            fcntl.ioctl(self._input, termios.TIOCSWINSZ, struct.pack("HHHH", *sides, 0, 0))

    def _on_output(self, output: int) -> None:
        if output in self._outputs:  # else another one had this number, in the same turn
            self._read(output, min(exec_frames.CHUNK, self._outputs[output].room))
            self._watch()

    def _read(self, output: int, most: int) -> int:
        """Send what an output has, up to `most` bytes; return their number."""
        try:
            data = os.read(output, most)
        except BlockingIOError:
            return 0
        except OSError:  # EIO: nobody has the terminal open any more
            data = b""
        if data:
            self._link.queue(self._outputs[output].frame(data))
        else:
            self._close_output(output)
        return len(data)

    def _write(self) -> None:
        """Write what its stdin takes."""
        before = len(self._to_process)
        if self._input < 0:
            self._to_process.clear()
        try:
            while self._to_process:
                del self._to_process[: os.write(self._input, self._to_process)]
        except BlockingIOError:
            pass
        except OSError:  # it does not read any more
            self._to_process.clear()
            self._close_input()
        if told := self._receiving.note_written(before - len(self._to_process)):
            self._link.queue(told)
        if self._ends_input and not self._to_process and not self._has_terminal:
            self._close_input()

    def _on_input(self) -> None:
        self._write()
        self._watch()

    def _watch(self) -> None:
        """Watch the outputs that may be sent, and the stdin that there is something for."""
        if self._input >= 0:
            self._watch_for(self._input, selectors.EVENT_WRITE if self._to_process else 0)
        for output, sending in self._outputs.items():
            self._watch_for(output, selectors.EVENT_READ if sending.room else 0)

    def _watch_for(self, descriptor: int, events: int) -> None:
        if events == self._watched.get(descriptor, 0):
            return
        if events == selectors.EVENT_READ:
            self._selector.register(descriptor, events, lambda _: self._on_output(descriptor))
        elif events:
            self._selector.register(descriptor, events, lambda _: self._on_input())
        else:
            self._selector.unregister(descriptor)
        self._watched[descriptor] = events

    def _close_output(self, output: int) -> None:
        self._watch_for(output, 0)
        del self._outputs[output]
        os.close(output)

    def _close_input(self) -> None:
        if self._input >= 0:
            self._watch_for(self._input, 0)
            os.close(self._input)
            self._input = -1


def beside(order: msg.Exec, task: msg.TaskOrder, mark: str) -> msg.Process:
    """Return the process of a command beside a task.

    It has the task's working directory, cores and variables, without the socket over which a
    task's children report, and the folder of its Python first on PATH.
    """
    env = {name: value for name, value in task.env.items() if name != EVENTS_SOCKET}
    env[_MARK] = mark
    if order.terminal is not None:
        env["TERM"] = order.terminal.kind
    folder, program = os.path.split(task.argv[0])
    if os.path.isabs(folder) and program.startswith("python"):
        env["PATH"] = os.pathsep.join([folder, environment(task).get("PATH", os.defpath)])
    return msg.Process(argv=order.argv, env=env, unset=task.unset, cwd=task.cwd, cores=task.cores)


def _fork(process: msg.Process, streams: list[int], *, has_terminal: bool) -> int:
    """Fork a child that executes a command's program; return its pid. Raises OSError.

    `streams`: its ends of stdin, stdout and stderr, and of the pipe for the reason of a failure.
    """
    *streams, failed = streams

    def connect() -> dict[str, str]:
        os.setsid()
        if has_terminal:
            fcntl.ioctl(streams[0], termios.TIOCSCTTY, 0)
        for target, stream in enumerate(streams):
            os.dup2(stream, target)
        return {}

    agent = os.getpid()
    pid = os.fork()
    if pid == 0:
        exec_or_report(process, connect, failed, agent)
    return pid
