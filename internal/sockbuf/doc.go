// Package sockbuf sets the sizes of sockets' buffers. It does something on Linux only.
package sockbuf
