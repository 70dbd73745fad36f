// Package common stands for the library of flannel's backend tencent-vpc, which no test uses: the library is large, and not all of its versions
// can be downloaded.
package common

func StringPtr(v string) *string      { return &v }
func StringPtrs(v []string) []*string { return make([]*string, len(v)) }
func BoolPtr(v bool) *bool            { return &v }
