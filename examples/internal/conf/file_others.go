//go:build !unix

package conf

import "os"

func fileID(os.FileInfo) any { return nil }
