//go:build unix

package conf

import (
	"os"
	"syscall"
)

func fileID(st os.FileInfo) any {
	if s, ok := st.Sys().(*syscall.Stat_t); ok {
		return s.Ino
	}
	return nil
}
