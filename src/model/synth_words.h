// The words from which the synthetic vocabulary is made, commonest first, and pieces of punctuation and layout.
#ifndef TF_MODEL_SYNTH_WORDS_H
#define TF_MODEL_SYNTH_WORDS_H

static const char synth_words[] =
    "the of and to a in is that it for you was on with as are be this have from or at by not but we they can all will "
    "one what there if an about which do your so when would how some time has more their them than like been up out "
    "who no could into other my then its only over new these also our use may such way because most any after where "
    "should make just many first very even well back through people work good much before two did see know here get "
    "need between same those both each want each must down while own made find long now day world take year part under "
    "life high every without place end still think number part great system right since small old large different come "
    "part does against another too few set again word example program thing point home being left while next say might "
    "state never last hand part while always order part order given name means part used using part three show line "
    "house form part help change part group important part water case question part country problem fact part school "
    "number keep begin seem talk turn start might run move live believe hold bring happen write provide sit stand lose "
    "pay meet include continue learn lead understand watch follow stop create speak read allow add spend grow open "
    "walk "
    "win offer remember love consider appear buy wait serve die send expect build stay fall cut reach kill remain "
    "suggest "
    "raise pass sell require report decide pull return explain carry develop hope drive break receive agree support "
    "hit "
    "produce eat cover catch draw choose cause listen realise place close involve increase describe answer reduce "
    "check "
    "man woman child family student teacher friend mother father parent person team company business office service "
    "market money price cost product industry government law court police war city street road car door room table "
    "window book paper letter story news picture music game film art science research study test result example theory "
    "idea view reason kind sort type sense mind heart head face eye body health doctor food field land tree river sea "
    "air "
    "light night morning evening week month hour minute second moment century history future past age power energy "
    "force "
    "level rate value amount half area region side top bottom front middle center edge corner north south east west "
    "animal dog cat bird fish horse sun moon star earth sky mountain island rain snow wind fire stone metal wood glass "
    "red green blue white black yellow brown bright dark clear cold hot warm cool dry wet soft hard fast slow early "
    "late "
    "young whole full empty free easy simple difficult possible impossible likely certain sure real true false best "
    "better "
    "worse worst least less enough several various special general common public private local national international "
    "human natural social political economic physical personal medical final main major single short strong weak heavy "
    "deep wide quick ready happy sad beautiful interesting available similar necessary current recent modern previous "
    "really actually usually often sometimes maybe perhaps probably almost already yet soon later today tomorrow "
    "yesterday "
    "together however therefore although though unless until within during across around behind beyond above below "
    "near "
    "instead rather quite exactly simply especially generally finally quickly clearly directly easily nearly "
    "something anything nothing everything someone anyone everyone somewhere himself herself itself themselves myself "
    "yourself ourselves yes please thanks thank hello sorry okay welcome "
    "i he she me him her his us am were had said went came got took gave saw knew thought found told asked felt became "
    "left began seemed helped showed heard played ran moved lived believed held brought happened wrote sat stood lost "
    "paid "
    "met led going being having doing making taking coming getting looking working trying asking saying playing "
    "running "
    "reading writing building thinking learning teaching feeling meaning beginning ending morning understanding "
    "training "
    "code function method class object array list string number integer float value variable constant type struct "
    "pointer "
    "memory buffer cache index key map set hash tree graph node edge queue stack heap loop branch condition statement "
    "expression operator argument parameter return result error exception message event thread process task lock "
    "server "
    "client request response header body token model layer weight matrix vector tensor attention embedding prompt "
    "context "
    "sampling temperature output input file path folder directory name size length count offset start stop step page "
    "block "
    "row column table query database record field user password account session network address port socket protocol "
    "version release build compile compiler debug test unit check verify validate parse format print read write open "
    "close "
    "create delete update insert remove replace search sort filter merge split join copy move load store save import "
    "export "
    "include define public private static const void int char bool double long unsigned true false null none self this "
    "new "
    "while for break continue switch case default else elif try catch throw finally async await yield lambda def "
    "algorithm computer software hardware machine device kernel driver instruction register processor performance "
    "speed "
    "latency bandwidth throughput parallel single double precision quantised language text character sentence document "
    "paragraph section chapter title summary description explanation definition question answer solution problem "
    "approach "
    "analysis design implementation architecture interface structure component module library package project "
    "repository "
    "information knowledge education experience development environment management organisation relationship situation "
    "condition position direction education application operation communication generation calculation equation "
    "probability statistics distribution average maximum minimum sum product difference ratio percent degree angle "
    "radius "
    "circle square triangle line point plane space dimension area volume mass weight length width height distance "
    "speed "
    "calculate compute measure compare estimate determine evaluate identify recognise predict "
    "one two three four five six seven eight nine ten hundred thousand million billion "
    "january february march april may june july august september october november december "
    "monday tuesday wednesday thursday friday saturday sunday "
    "english french german spanish chinese japanese american european african asian paris london "
    "mr mrs dr vs etc http https www com org html json xml api url id ok "
    "don isn doesn didn won wouldn couldn shouldn aren wasn weren hasn haven "
    "ing tion ment ness able ible less ful ous ive ical ally ity ance ence er est ed ly es re un pre dis non sub inter "
    "over under anti auto self multi semi super trans micro mega ";

// Taken as they are, without a space before; the common ones first.
static const char *const synth_pieces[] = {
    "\n\n",
    ".\n",
    ".\n\n",
    ":\n",
    ",\n",
    ";\n",
    ":\n\n",
    "!\n",
    "?\n",
    " (",
    ")",
    "),",
    ").",
    ");",
    " =",
    " ==",
    " +",
    " -",
    " *",
    " /",
    " <",
    " >",
    " {",
    "}",
    " {\n",
    "}\n",
    "{\n",
    "();\n",
    "()",
    "):\n",
    ");\n",
    "):",
    " \"",
    "\",",
    "\".",
    "\"\n",
    "\":",
    " '",
    "',",
    "'s",
    "'t",
    "'re",
    "'ve",
    "'ll",
    "'m",
    "'d",
    " !=",
    " <=",
    " >=",
    " &&",
    " ||",
    " ->",
    " =>",
    " :=",
    " +=",
    " -=",
    "//",
    " //",
    "/*",
    "*/",
    " #",
    "##",
    "###",
    "####",
    "**",
    " **",
    "```",
    "```\n",
    "--",
    "---",
    " -",
    "...",
    "://",
    "</",
    "/>",
    "\">",
    "<|",
    "|>",
    "[]",
    " [",
    "],",
    "];\n",
    "[\"",
    "\"]",
    "{\"",
    "\"}",
    "},",
    "},\n",
    "};\n",
    " ",
    "  ",
    "   ",
    "    ",
    "     ",
    "      ",
    "       ",
    "        ",
    "           ",
    "            ",
    "               ",
    "                ",
    "\n    ",
    "\t",
    "\t\t",
    "\t\t\t",
    "\r\n",
    "\r\n\r\n",
    " .",
    " ,",
    " ?",
    " !",
    " :",
    "::",
    "==",
    "!=",
    "<=",
    ">=",
    "->",
    "=>",
    "&&",
    "||",
    "++",
    "*(",
    " &",
    " |",
    " %",
    " $",
    " @",
    " ~",
    " ^",
    "___",
    "__",
    "_(",
    "%d",
    "\\n",
    "\\\"",
    "…",
    " —",
    " –",
    "’",
    "“",
    "”",
    "é",
    "ü",
    "ö",
    "ä",
};

#endif
