package sockbuf

import "golang.org/x/sys/unix"

// SetReceive has a socket keep that many bytes until they are read, beyond the system's limit where this process may, else up to it.
func SetReceive(fd, size int) { set(fd, unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, size) }

// SetSend has a socket keep that many bytes until they are sent, with the same limit.
func SetSend(fd, size int) { set(fd, unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, size) }

func set(fd, force, plain, size int) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, size) != nil {
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, size)
	}
}
