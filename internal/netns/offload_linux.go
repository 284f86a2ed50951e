package netns

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Commands of SIOCETHTOOL (linux/ethtool.h) that switch an offload.
var offloads = [...]struct {
	name    string
	command uint32
}{
	{"receive checksum", 0x15}, {"transmit checksum", 0x17}, {"scatter-gather", 0x19},
	{"TCP segmentation", 0x1f}, {"generic segmentation", 0x24}, {"generic receive", 0x2c},
}

// noOffload has an interface send each packet whole and with its checksum computed, and verify those it
// receives: between namespaces wrong checksums would otherwise go unnoticed.
func noOffload(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	for _, o := range offloads {
		value := struct{ command, on uint32 }{command: o.command}
		request := struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}{data: unsafe.Pointer(&value)}
		copy(request.name[:unix.IFNAMSIZ-1], name)
		if _, _, e := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); e != 0 {
			return fmt.Errorf("switch off %s offload of %s: %w", o.name, name, e)
		}
	}
	return nil
}
